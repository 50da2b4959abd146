"""A job that is stopped and started again as a whole goes on with its input."""

import json

import numpy as np
import pytest

from support.servers import Servers
from support.waiting import wait_until

BATCHES = 3000
TASK = {"task": "support.counted_task:make_task", "batch_size": 1, "num_examples": BATCHES}


def train_a_part(model_dir, *, hold, num_workers=2, **settings):
    """Save in the middle of training, train on, and end without another save; what was saved."""
    with Servers(model_dir, num_ps=2, num_workers=num_workers, **settings) as servers:
        servers.start_all(**TASK)
        job = servers.connect().controller
        wait_until(lambda: job.training_status() > 200)
        saved = job.save(hold=hold)
        wait_until(lambda: job.training_status() > saved.step + 20)
        return saved


def train_the_rest(model_dir, *, num_workers=2, **settings):
    """How often each batch was trained when the job has ended, and its status."""
    with Servers(model_dir, num_ps=1, num_workers=num_workers, **settings) as servers:
        servers.start_all(**TASK)
        cluster = servers.connect()
        status = wait_until(lambda: (now := cluster.controller.status()).outcome and now, 100)
        rows = cluster.pull({"trained": np.arange(BATCHES)}).rows["trained"]
        return rows[:, 0], status


def manifest_of(saved):
    with open(f"{saved.path}/manifest.json") as file:
        return json.load(file)


def test_after_a_save_that_held_training_each_batch_is_trained_exactly_once(tmp_path):
    saved = train_a_part(tmp_path, hold=True)
    trained, status = train_the_rest(tmp_path)
    np.testing.assert_array_equal(trained, np.ones(BATCHES))
    assert status.outcome == "succeeded"
    assert status.global_step == BATCHES
    done = [member.position for member in status.members if member.role == "worker"]
    assert sum(done) == BATCHES - saved.step
    assert status.input == (
        f"goes on where it was when {saved.path} was saved; no batch is trained again"
    )


def test_after_a_save_beside_training_no_batch_is_left_out_and_few_are_trained_again(tmp_path):
    saved = train_a_part(tmp_path, hold=False)
    trained, status = train_the_rest(tmp_path)
    assert trained.min() == 1
    assert trained.max() <= 2
    assert "goes on where it was" in status.input
    again = int(trained.sum()) - BATCHES
    # The last reports were at most a fifth of a second old when the cursors were taken.
    assert again <= manifest_of(saved)["repeated_batches"] + saved.step


def test_another_number_of_workers_leaves_no_batch_out(tmp_path):
    train_a_part(tmp_path, hold=True)
    trained, _ = train_the_rest(tmp_path, num_workers=3)
    assert trained.min() == 1
    assert trained.max() <= 2


def test_an_input_of_another_name_is_read_from_its_start(tmp_path):
    saved = train_a_part(tmp_path, hold=True, input_name="monday")
    assert manifest_of(saved)["input_name"] == "monday"
    trained, status = train_the_rest(tmp_path, input_name="tuesday")
    assert int(trained.sum()) == BATCHES + saved.step
    assert status.input == (
        f"is read from its beginning: {saved.path} was saved with an input named monday"
    )


@pytest.mark.parametrize("when", ["saved", "restored"])
def test_without_cursors_the_input_is_read_from_its_start(tmp_path, when):
    saved = train_a_part(tmp_path, hold=True, input_cursors=when != "saved")
    assert bool(manifest_of(saved)["cursors"]) == (when != "saved")
    trained, status = train_the_rest(tmp_path, input_cursors=when != "restored")
    assert int(trained.sum()) == BATCHES + saved.step
    assert trained.max() == 2
    assert status.input == ""
