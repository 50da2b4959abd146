"""What README and docs/ say of commands is what the repository has."""

import re

import pytest

from support.pages import ROOT, pages


@pytest.mark.parametrize("page", pages())
def test_every_make_target_it_names_exists(page):
    makefile = (ROOT / "Makefile").read_text()
    text = (ROOT / page).read_text()
    for target in set(re.findall(r"(?:^ *|`)make ([a-z][a-z-]+)", text, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


# A page names a file from the root, or from one of the rooms of the code: `wire/status.py`
NAMES_FILES_OF_MONOLITH = ("docs/coming-from-monolith.md", "docs/goldens.md")  # tested apart
BEGINNINGS = ("", "services/megalith", "client/megalith", "client/megalith/client", "tests")


@pytest.mark.parametrize("page", pages())
def test_every_file_it_names_exists(page):
    if page in NAMES_FILES_OF_MONOLITH:
        return
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|proto|sh|yml))`", text)
    named += re.findall(r"`((?:tests|scripts|examples|deploy)/[\w./-]*)", text)
    missing = [
        path for path in named if not any((ROOT / first / path).exists() for first in BEGINNINGS)
    ]
    assert missing == []
