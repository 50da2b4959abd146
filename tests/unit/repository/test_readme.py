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
