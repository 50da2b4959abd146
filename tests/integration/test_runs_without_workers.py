"""Runs without workers between two that train: rows change, and the input stays where it was."""

import time

import numpy as np
import pytest

from megalith.checkpoint.directory import increments
from megalith.checkpoint.storage.location import locate
from support import counted_task
from support.servers import Servers
from support.waiting import wait_until

ROWS = 300_000
BATCH = 500
TASK = {"task": counted_task.path(), "batch_size": BATCH, "num_examples": ROWS}
OTHERS = np.arange(ROWS, ROWS + 1000)  # rows that no worker trains


def push_others(cluster):
    cluster.push({"trained": (OTHERS, -np.ones((OTHERS.size, 1), np.float32))})


def pull(cluster, ids):
    parts = np.array_split(ids, 8)
    return np.concatenate([cluster.pull({"trained": part}).rows["trained"][:, 0] for part in parts])


def train_a_part(model_dir):
    with Servers(model_dir, num_ps=2, num_workers=2, increment_every_s=0) as servers:
        servers.start_all(**TASK)
        job = servers.connect().controller
        wait_until(lambda: job.training_status() > 100)
        saved = job.save(hold=True)
        wait_until(lambda: job.training_status() > saved.step + 10)
        return saved


def wait_for_increment(base, after_s):
    """One that was begun after that."""
    wait_until(lambda: increments.read_chain(base).last.saved_at_s > after_s)


def serve(model_dir, base):
    """Pushes of a program are saved in increments, also by a controller that was started again."""
    with Servers(model_dir, num_ps=3, increment_every_s=0.1) as servers:
        servers.start_all()
        cluster = servers.connect()
        for _ in range(2):
            push_others(cluster)
            wait_for_increment(base, time.time())
            servers.stop("controller")
            servers.start_controller()
            wait_until(lambda: cluster.controller.status().phase == "running")

        chain = increments.read_chain(base)
        assert chain.last.cursors == chain.base.cursors != ()


def serve_and_save(model_dir):
    with Servers(model_dir, num_ps=1, increment_every_s=0) as servers:
        servers.start_all()
        job = servers.connect().controller
        wait_until(lambda: job.status().phase == "running")
        return job.save()


def train_the_rest(model_dir):
    with Servers(model_dir, num_ps=2, num_workers=2, increment_every_s=0) as servers:
        servers.start_all(**TASK)
        cluster = servers.connect()
        status = wait_until(lambda: (now := cluster.controller.status()).outcome and now, 100)
        return pull(cluster, np.arange(ROWS)), pull(cluster, OTHERS), status


@pytest.mark.parametrize("is_saved_whole", [False, True])
def test_training_goes_on_where_the_input_was_after_a_run_without_workers(tmp_path, is_saved_whole):
    saved = train_a_part(tmp_path)
    serve(tmp_path, locate(saved.path))
    if is_saved_whole:
        saved = serve_and_save(tmp_path)

    number = increments.read_chain(locate(saved.path)).number
    newest = f"increment {number} of {saved.path}" if number else saved.path
    trained, others, status = train_the_rest(tmp_path)
    np.testing.assert_array_equal(trained, 1)
    np.testing.assert_array_equal(others, 2)
    assert status.outcome == "succeeded"
    assert status.global_step == ROWS // BATCH
    before = f"goes on where it was when {newest} was saved, at step "
    assert status.input.startswith(before)
    assert status.input.endswith("; no batch counts twice")
