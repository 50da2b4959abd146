"""`megalith train` on batches that cannot be trained: one line with worker, step and place."""

import re
from pathlib import Path

import pytest

from support.processes import run_cli

TESTS = Path(__file__).parents[1]
TASK = TESTS / "support" / "spoiled_task.py"


def train(model_dir, spoiled, *options):
    """Two workers; worker-1 reads the odd numbers."""
    return run_cli(
        "train",
        f"{TASK}:SpoiledTask",
        *("--model-dir", model_dir),
        *("--batch-size", 64, "--num-examples", 6400),
        *("--set", f"task.spoiled={spoiled}", "--set", "task.numbers=[7]"),
        *options,
        environ={"PYTHONPATH": str(TESTS)},
    )


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (
            "splits",
            r"ShapeMismatch: batch 7: feature user: ragged: row_splits fall after position 2, "
            r"from 2; step \d+$",
        ),
        pytest.param(
            "label",
            r"BadData: batch 7: 1 of 64 labels is outside 0..1, the first is 3.0; "
            r"step \d+, batch 7$",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "nan",
            r"NonFiniteValue: the loss is nan\. .*--on-nan skip .*; step \d+, batch 7$",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_bad_batch_ends_the_job_with_its_worker_step_and_place(tmp_path, spoiled, message):
    status, out, err = train(tmp_path, spoiled)
    assert status == 1, (out, err)
    assert re.search("worker-1 stops: " + message, err, re.MULTILINE), err
    assert "the job failed: worker-1 failed" in err.splitlines()[-1]
    assert "Traceback" not in out + err


def test_a_nan_loss_is_left_out_when_told_to_and_counted_at_the_end(tmp_path):
    status, out, err = train(tmp_path, "nan", "--on-nan", "skip")
    assert status == 0, (out, err)
    assert re.search(r"batches.* left out *│ 1 ", out), out
    assert re.search(r"steps +│ 100 ", out), out
