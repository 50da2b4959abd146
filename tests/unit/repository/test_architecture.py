"""What ARCHITECTURE.md and the pages about guarantees, locks and decisions name exists."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = (
    "ARCHITECTURE.md",
    "docs/guarantees.md",
    "docs/locks.md",
    *(str(path.relative_to(ROOT)) for path in sorted(DECISIONS.glob("*.md"))),
)
NAMED = r"`([\w/.-]+\.(?:py|proto)|[\w/-]+/)`"  # a source file or a folder
HEADINGS = ["Question", "Decision", "Why", "What lost", "Price"]


def files():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.splitlines()


def numbered():
    return sorted(path for path in DECISIONS.glob("*.md") if path.name != "index.md")


@pytest.mark.parametrize("page", PAGES)
def test_a_source_file_or_folder_that_a_page_names_exists(page):
    """A page may leave out the beginning of a path: `ps/config.py` is in services/megalith."""
    known = ["/" + name for name in files()]
    for named in re.findall(NAMED, (ROOT / page).read_text()):
        assert any("/" + named in name for name in known), f"{page} names {named}"


def test_every_lock_that_the_page_of_locks_names_is_in_the_code():
    page = (ROOT / "docs" / "locks.md").read_text()
    named = re.findall(r"`([A-Z_]\w+)\.(_?[a-z_]+)`", page)
    sources = [
        (ROOT / name).read_text()
        for name in files()
        if name.startswith(("services/", "client/")) and name.endswith(".py")
    ]
    assert named
    for owner, lock in named:
        assert any(
            f"class {owner}" in source and f"self.{lock} = " in source for source in sources
        ), f"{owner}.{lock}"


def test_decisions_are_numbered_in_order_and_all_listed():
    names = [path.name for path in numbered()]
    assert [int(name[:3]) for name in names] == list(range(1, len(names) + 1))
    index = (DECISIONS / "index.md").read_text()
    assert re.findall(r"\]\((\d[^)]*)\)", index) == names


@pytest.mark.parametrize("path", numbered(), ids=lambda path: path.stem)
def test_a_decision_says_what_was_asked_decided_lost_and_paid(path):
    text = path.read_text()
    title = text.splitlines()[0]
    assert title.startswith(f"# {path.name[:3]}. ")
    assert f"[{title.removeprefix('# ')}]({path.name})" in (DECISIONS / "index.md").read_text()
    assert re.findall(r"^\*\*([\w ]+)\.\*\*", text, re.MULTILINE) == HEADINGS
    assert 10 <= len(text.splitlines()) <= 30
