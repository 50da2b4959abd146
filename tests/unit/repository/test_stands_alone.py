"""The repository stands alone: it names no path beside a clone of it, and no host of packages."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Spelled so that this file does not find itself
OUTSIDE = r"\.\.[/]shared|[/]work/|[/]farm/|[/]root/|\b(tables|cluster)[.]md"
# pip, apt and Docker know where a site has its packages and images; the repository does not
PACKAGE_HOSTS = (
    r"debian[.]org|ubuntu[.]com|pypi[.]org|pythonhosted[.]org|npmjs[.]"
    r"|docker[.]io|quay[.]io|ghcr[.]io|gcr[.]io"
)


def lines_with(pattern):
    """The lines of the repository that match, with file and number."""
    found = subprocess.run(
        ["git", "grep", "-nE", pattern], cwd=ROOT, capture_output=True, text=True
    )
    assert found.stderr == ""
    return found.stdout.splitlines()


def test_no_file_names_a_path_outside_of_the_repository():
    assert lines_with(OUTSIDE) == []


def test_no_file_names_a_host_of_packages_or_images():
    assert lines_with(PACKAGE_HOSTS) == []
