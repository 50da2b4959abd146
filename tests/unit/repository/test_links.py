"""Every link inside the documentation leads somewhere, on GitHub as in the site."""

import os
import re

import pytest

from support.pages import ROOT, anchors, links, pages

PAGES = pages()


def broken(page, text):
    """The links of a page that lead to no file, or to no heading of it."""
    found = []
    for target in links(text):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue  # of another host, which may be away while the tests run
        path, _, anchor = target.partition("#")
        wanted = ROOT / page if not path else ROOT / os.path.normpath((ROOT / page).parent / path)
        if not wanted.exists() or not wanted.is_relative_to(ROOT):
            found.append(f"{target}: there is no such file")
        elif anchor and wanted.suffix != ".md":
            found.append(f"{target}: a line number, which moves; name the function in the text")
        elif anchor and anchor not in anchors(text if not path else wanted.read_text()):
            found.append(f"{target}: {wanted.name} has no such heading")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_to_a_file_and_a_heading_that_exist(page):
    assert broken(page, (ROOT / page).read_text()) == []


@pytest.mark.parametrize(
    "link",
    [
        "docs/nowhere.md",
        "docs/concepts.md#nowhere",
        "#nowhere",
        "../outside.md",
        "Makefile#L3",
    ],
)
def test_a_broken_link_is_found(link):
    assert len(broken("README.md", f"# Title\n\nSee [it]({link}).\n")) == 1


def test_a_link_to_a_heading_a_file_a_folder_or_another_host_is_not_broken():
    text = "# One `title`, twice\n\n## A\n\n## A\n\n[x](#one-title-twice) [y](#a-1) [z](docs) "
    text += "[m](Makefile) [h](https://example.org/#x) [c](docs/concepts.md#concepts)\n"
    assert broken("README.md", text) == []


def test_links_inside_code_are_not_links():
    assert links("`[a](b)`\n\n```text\n[c](d)\n```\n\n[e](f)\n\n[g]: h\n") == ["f", "h"]
