"""The repository stands alone: nothing in it points to what lies beside a clone of it."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Spelled so that this file does not find itself
OUTSIDE = r"\.\.[/]shared|[/]work/|[/]farm/|[/]root/|\b(tables|cluster)[.]md"


def test_no_file_names_a_path_outside_of_the_repository():
    found = subprocess.run(
        ["git", "grep", "-nE", OUTSIDE], cwd=ROOT, capture_output=True, text=True
    )
    assert found.stderr == ""
    assert found.stdout == ""
