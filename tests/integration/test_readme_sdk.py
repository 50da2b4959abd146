"""The programs of README and docs/sdk.md run as they stand there, and print what stands there."""

import contextlib
import io

import pytest

from support.pages import ROOT, blocks
from support.servers import Servers


def run_page(page, model_dir):
    """Run the python blocks of a page as one program; compare each with the text block below it."""
    names = {}
    printed = None
    num_compared = 0
    for block in blocks((ROOT / page).read_text()):
        where = f"{page}:{block.line}"
        if block.language == "python":
            source = block.text.replace('model_dir="model"', f"model_dir={str(model_dir)!r}")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(source, where, "exec"), names)
            printed = out.getvalue()
        elif block.language == "text" and printed is not None:
            assert printed.strip() == block.text.strip(), where
            printed = None
            num_compared += 1
        else:
            printed = None

    return num_compared


@pytest.mark.parametrize(("page", "least"), [("README.md", 1), ("docs/sdk.md", 15)])
def test_the_programs_of_a_page_print_what_the_page_says(page, least, tmp_path):
    if page == "docs/sdk.md":
        pytest.importorskip("torch", reason="docs/sdk.md has an example in PyTorch")

    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        assert run_page(page, tmp_path) >= least


def test_the_readme_has_at_most_200_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
