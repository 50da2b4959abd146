"""Batches that cannot be trained: the right worker stops with their place, or leaves them out."""

import re

import pytest

from support.servers import Servers
from support.waiting import wait_until

TASK = {"batch_size": 64, "num_examples": 6400}


def failure(model_dir, **task):
    with Servers(model_dir, num_ps=1, num_workers=2) as servers:
        servers.start_all(**TASK, **task)
        name = wait_until(lambda: next((n for n, e in servers.exits.items() if e.reason), ""), 60)
        return name, servers.exits[name].reason


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        ("nan", r"NonFiniteValue: the loss is nan\..*--on-nan skip"),
        ("label", "BadData: batch 7: 1 of 64 labels is outside 0..1, the first is 3.0"),
        ("raise", r"training failed: no film today \(.*spoiled_task.py:\d+ in step\)"),
        (
            "exit",
            r"training failed: SystemExit\('no more films'\) \(.*spoiled_task.py:\d+ in step\)",
        ),
    ],
)
def test_the_worker_that_meets_it_stops_with_its_step_and_place(tmp_path, spoiled, message):
    options = f'{{"spoiled": "{spoiled}", "numbers": [7]}}'
    name, reason = failure(tmp_path, task="support.spoiled_task:SpoiledTask", task_options=options)
    assert name == "worker-1"  # it reads the odd ones

    assert re.search(message, reason), reason
    assert re.search(r"; step \d+, batch 7$", reason), reason


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (
            "splits",
            r"^ShapeMismatch: batch 7: feature user: ragged: row_splits fall after position 2, "
            r"from 2; step \d+$",
        ),
        (
            "read",
            r"^training failed: no file today \(.*spoiled_task.py:\d+ in batch\); batch 7; "
            r"step \d+$",
        ),
    ],
)
def test_a_batch_that_cannot_be_read_stops_its_worker_with_step_and_place(
    tmp_path, spoiled, message
):
    options = f'{{"spoiled": "{spoiled}", "numbers": [7]}}'
    name, reason = failure(tmp_path, task="support.spoiled_task:SpoiledTask", task_options=options)
    assert name == "worker-1"
    assert re.search(message, reason), reason


def test_told_to_skip_the_others_are_trained_and_what_was_left_out_is_counted(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        servers.start_all(
            **TASK,
            task="support.spoiled_task:SpoiledTask",
            task_options='{"spoiled": "nan", "numbers": [7, 8, 9]}',
            on_nan="skip",
        )
        job = servers.connect().controller
        status = wait_until(lambda: (now := job.status()).outcome and now, 60)
    assert status.outcome == "succeeded", status.reason
    assert status.global_step == 100
    skipped = {each.index: each.skipped_batches for each in status.members if each.role == "worker"}
    assert skipped == {0: 1, 1: 2}
    assert status.results["auc"] > 0.5
