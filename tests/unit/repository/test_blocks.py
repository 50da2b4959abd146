"""Every block of code in the documentation is run by a test, or the page says why it is not."""

import itertools
import re
import subprocess

import pytest

from support.pages import ROOT, blocks, pages, prose

RUN = {"python", "sh"}


@pytest.mark.parametrize("page", pages())
def test_every_block_is_run_or_is_output_or_says_why_it_is_not_run(page):
    for block in blocks((ROOT / page).read_text()):
        where = f"{page}:{block.line}"
        if block.language == "text":
            continue  # what something prints, or a drawing
        if block.marks.is_run:
            assert block.language in RUN, f"{where}: no test runs {block.language or 'this'}"
        else:
            assert len(block.marks.reason_not_to_run) > 8, f"{where}: why is it not run?"


@pytest.mark.parametrize("page", pages())
def test_no_code_stands_outside_of_a_fence(page):
    """Four spaces make code of a paragraph too, and nothing could say how that is run."""
    lines = ["", *prose((ROOT / page).read_text()).splitlines()]
    for before, line in itertools.pairwise(lines):
        is_paragraph = before.strip() == "" and re.match(r" {4,}[^\s*|-]", line)
        assert not is_paragraph, line


@pytest.mark.parametrize("page", pages())
def test_every_shell_block_is_shell_and_every_python_block_is_python(page):
    for block in blocks((ROOT / page).read_text()):
        where = f"{page}:{block.line}"
        if block.language == "sh":
            done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
            assert done.stderr == "", where
        elif block.language == "python":
            compile(block.text, where, "exec")


def test_a_comment_above_a_block_says_how_it_is_run():
    text = "<!-- needs docker; Ctrl-C at step 20 -->\n```sh\nx\n```\n```text\ny\n```\n"
    first, second = blocks(text)
    assert first.marks.needs == ("docker",)
    assert first.marks.runs_on
    assert first.marks.until_step == 20
    assert second.follows(first)
    assert (
        blocks("<!-- not run: for two\nreasons -->\n```sh\nx\n```\n")[0].marks.reason_not_to_run
        == "for two reasons"
    )


def test_the_readme_has_at_most_200_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
