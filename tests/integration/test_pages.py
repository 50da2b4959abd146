"""The blocks of the pages run as they stand there, on servers in this process.

tests/fault/test_pages.py runs the same pages as a reader would: with clusters that they start themselves.
"""

import runpy
import subprocess

import numpy as np
import pytest

from megalith.local import local_train
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
        ("docs/tasks.md", 2),
    ],
)
def test_the_blocks_of_a_page_run_and_its_programs_print_what_it_says(page, least, tmp_path):
    if page in ("docs/sdk.md", "docs/tasks.md"):
        pytest.importorskip("torch", reason=f"{page} has an example in PyTorch")
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
    task_class = runpy.run_path("ratings_task.py")["RatingsTask"]
    task = task_class(batch_size=5, num_examples=50, seed=1)
    assert task.num_batches() == 10
    batch = task.batch(3)
    np.testing.assert_array_equal(batch.labels, task.batch(3).labels)

    rng = np.random.default_rng(2)
    layouts = {"biases": rng.normal(0, 1, (5, 1)), "vectors": rng.normal(0, 1, (5, 2, 8))}
    variables = {"bias": np.array([0.3])}
    given = task.step(batch, layouts, variables)

    step = 1e-6
    for name, values in layouts.items():
        expected = np.empty(values.shape)
        for at in np.ndindex(*values.shape):
            moved = {each: array.copy() for each, array in layouts.items()}
            moved[name][at] += step
            loss = task.step(batch, moved, variables).loss
            expected[at] = (loss - given.loss) / step * 5  # the page says: of the summed loss
        np.testing.assert_allclose(given.layouts[name], expected, atol=1e-4)
    loss = task.step(batch, layouts, {"bias": variables["bias"] + step}).loss
    np.testing.assert_allclose(given.variables["bias"], (loss - given.loss) / step, atol=1e-4)


def test_the_task_of_the_readme_learns_the_data_of_the_example_script(tmp_path, monkeypatch):
    """Its file verbatim, on a smaller data set, in this process instead of a cluster."""
    text = (ROOT / "README.md").read_text()
    block = next(each.text for each in blocks(text) if each.text.startswith("cat > my_task.py"))
    files_alone = block[: block.index("megalith train")]
    run_bash = ["bash", "-eu", "-c", files_alone]
    subprocess.run(run_bash, cwd=tmp_path, env=environ(), check=True, capture_output=True)
    make_ratings = runpy.run_path(str(ROOT / "examples/make_movielens_like.py"))["main"]

    monkeypatch.chdir(tmp_path)
    make_ratings("ratings", "100000")
    names = runpy.run_path("my_task.py")
    task = names["MyTask"](batch_size=512, num_examples=0, seed=1)
    _check_gradients(task, task.batch(0), (512, 5, 8))
    run = local_train(task)
    assert run.step == 90_000 // 512
    assert run.losses[0] == pytest.approx(np.log(2), abs=0.01)
    assert run.figures["auc"] > 0.65


def _check_gradients(task, batch, shape):
    """Those of layouts are of the summed loss."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(0, 0.5, shape)
    given = task.step(batch, {"vectors": vectors}, {})
    step = 1e-6
    for at in [(0, 0, 0), (3, 2, 7), (511, 4, 3)]:
        moved = vectors.copy()
        moved[at] += step
        loss = task.step(batch, {"vectors": moved}, {}).loss
        expected = (loss - given.loss) / step * len(batch)
        assert given.layouts["vectors"][at] == pytest.approx(expected, abs=1e-3)
