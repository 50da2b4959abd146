"""Every page as a reader goes through it: real clusters, started by the page's own commands.

Blocks that need ZooKeeper, Consul, Docker or grpcurl are left out where there is none, and a warning line
of the test says how to get it.
"""

import pytest

from support.page_runs import PageRun
from support.pages import ROOT, blocks, pages

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

PAGES = [
    page
    for page in pages()
    if any(
        block.marks.is_run
        for block in blocks((ROOT / page).read_text())
        if block.language in ("sh", "python")
    )
]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_and_prints_what_the_page_says(page, tmp_path):
    run = PageRun(page, tmp_path, with_clusters=True)
    run.run()
    print(*run.skipped, sep="\n")
    assert run.num_run > 0 or run.skipped
