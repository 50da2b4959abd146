"""The blocks of the pages run as they stand there, on servers in this process.

tests/fault/test_pages.py runs the same pages as a reader would: with clusters that they start themselves.
"""

import runpy
import subprocess

import numpy as np
import pytest

from support.page_runs import PageRun, environ
from support.pages import ROOT, blocks
from support.servers import Servers


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("README.md", 1),
        ("docs/sdk.md", 15),
        ("docs/operating.md", 1),
        ("docs/checkpoints.md", 3),
        ("docs/coming-from-monolith.md", 1),
        ("docs/settings.md", 1),
    ],
)
def test_the_blocks_of_a_page_run_and_its_programs_print_what_it_says(page, least, tmp_path):
    if page == "docs/sdk.md":
        pytest.importorskip("torch", reason="docs/sdk.md has an example in PyTorch")
    if page == "docs/checkpoints.md":
        pytest.importorskip("duckdb", reason="docs/checkpoints.md has a query in SQL")

    with Servers(tmp_path / "model", num_ps=2) as servers:
        servers.start_all()
        run = PageRun(page, tmp_path, with_clusters=False)
        run.run()
    assert run.num_compared >= least


def test_the_task_of_the_tutorial_has_the_gradients_of_its_loss(tmp_path, monkeypatch):
    """The quick half of the tutorial: its files, and its task in this process instead of a cluster."""
    for block in blocks((ROOT / "docs/tutorial.md").read_text()):
        if block.language == "sh" and block.text.startswith("cat >"):
            command = ["bash", "-eu", "-c", block.text]
            subprocess.run(command, cwd=tmp_path, env=environ(), check=True, capture_output=True)

    monkeypatch.chdir(tmp_path)
    make_task = runpy.run_path("ratings_task.py")["make_task"]
    task = make_task(batch_size=5, num_examples=50, seed=1)
    assert task.num_batches() == 10
    batch = task.batch(3)
    np.testing.assert_array_equal(batch, task.batch(3))

    rng = np.random.default_rng(2)
    rows = {table: rng.normal(0, 1, (5, 9)) for table in task.ids(batch)}
    variables = {"bias": np.array([0.3])}
    given = task.gradients(batch, rows, variables)

    step = 1e-6
    for table in rows:
        expected = np.empty((5, 9))
        for at in np.ndindex(5, 9):
            moved = {name: values.copy() for name, values in rows.items()}
            moved[table][at] += step
            loss = task.gradients(batch, moved, variables).loss
            expected[at] = (loss - given.loss) / step * 5  # the page says: of the summed loss
        np.testing.assert_allclose(given.rows[table], expected, atol=1e-4)
    loss = task.gradients(batch, rows, {"bias": variables["bias"] + step}).loss
    np.testing.assert_allclose(given.variables["bias"], (loss - given.loss) / step, atol=1e-4)
