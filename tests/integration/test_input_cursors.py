"""A job that is stopped and started again as a whole goes on with its input."""

import json
from pathlib import Path

import numpy as np
import pytest

from megalith.appmaster.servicer import time_point_of
from megalith.checkpoint.directory import increments
from megalith.checkpoint.inspection.variables import variables_of
from support.servers import Servers
from support.streamed_task import FIRST_S
from support.waiting import wait_until

BATCHES = 3000
TASKS = ("support.counted_task:make_task", "support.streamed_task:StreamedTask")


@pytest.fixture(params=TASKS, ids=["numbered", "streamed"], autouse=True)
def _task(request):
    TASK["task"] = request.param


TASK = {"batch_size": 1, "num_examples": BATCHES}


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
    return manifest_in(saved.path)


def manifest_in(path):
    with open(f"{path}/manifest.json") as file:
        return json.load(file)


def test_after_a_save_that_held_training_each_batch_is_trained_exactly_once(tmp_path):
    saved = train_a_part(tmp_path, hold=True)
    trained, status = train_the_rest(tmp_path)
    np.testing.assert_array_equal(trained, np.ones(BATCHES))
    assert status.outcome == "succeeded"
    assert status.global_step == BATCHES
    assert (
        manifest_in(status.last_checkpoint)["repeated_batches"] == 0
    )  # the last save leaves none behind either
    done = [member.position for member in status.members if member.role == "worker"]
    assert sum(done) == BATCHES - saved.step
    assert status.input == (
        f"goes on where it was when {saved.path} was saved, at step {saved.step}; "
        "no batch counts twice"
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


def test_a_save_beside_training_has_the_moment_when_it_began(tmp_path):
    """Not that of the last reports, which are from before the first step here."""
    sharding = "dynamic" if TASK["task"] == TASKS[0] else "static"
    with Servers(tmp_path, num_ps=2, num_workers=2) as servers:
        servers.heartbeat_s = 60.0
        servers.start_all(**TASK, sharding=sharding)
        cluster = servers.connect()

        def trained():
            return int(cluster.pull({"trained": np.arange(BATCHES)}).rows["trained"].sum())

        wait_until(lambda: cluster.controller.status().phase == "running")
        wait_until(lambda: trained() > 200)
        before = trained()
        saved = cluster.controller.save()
        after = trained()

    workers = 2  # each may be in a step that is trained and not counted, or not answered yet
    assert before - workers <= saved.step <= after
    repeated = manifest_of(saved)["repeated_batches"]
    assert saved.step + repeated <= after
    chain = increments.read_chain(Path(saved.path))
    in_variable = int(variables_of(chain)["global_step"].value)
    assert saved.step - workers <= in_variable <= saved.step + repeated + workers


def test_another_number_of_workers_leaves_no_batch_out(tmp_path):
    saved = train_a_part(tmp_path, hold=True)
    trained, status = train_the_rest(tmp_path, num_workers=3)
    assert trained.min() == 1
    assert trained.max() <= 2
    assert status.input == (
        f"goes on where it was when {saved.path} was saved, at step {saved.step}; it was divided "
        "among 2 workers then, and is among 3 now: batches may be trained again, and the logs of the workers say from "
        "where on; none is left out"
    )


def test_an_input_of_another_name_is_read_from_its_start(tmp_path):
    saved = train_a_part(tmp_path, hold=True, input_name="monday")
    assert manifest_of(saved)["input_name"] == "monday"
    trained, status = train_the_rest(tmp_path, input_name="tuesday")
    assert int(trained.sum()) == BATCHES + saved.step
    assert status.input == (
        f"is read from its beginning: {saved.path} was saved with an input named monday, "
        "this one is named tuesday"
    )


def serve_and_save(model_dir, **settings):
    """A run without workers, in which a program pushes rows: what it saved, and its status."""
    with Servers(model_dir, num_ps=1, **settings) as servers:
        servers.start_all()
        cluster = servers.connect()
        wait_until(lambda: cluster.controller.status().phase == "running")
        saved = cluster.controller.save()
        return saved, cluster.controller.status()


@pytest.mark.parametrize("input_name", ["", "monday"])
def test_a_run_without_workers_leaves_the_input_where_it_was(tmp_path, input_name):
    train_a_part(tmp_path, hold=True, input_name=input_name)
    saved, status = serve_and_save(tmp_path)
    assert status.input == ""
    assert manifest_of(saved)["input_name"] == input_name

    trained, status = train_the_rest(tmp_path, input_name=input_name)
    np.testing.assert_array_equal(trained, np.ones(BATCHES))
    assert status.input == (
        f"goes on where it was when {saved.path} was saved, at step {saved.step}; "
        "no batch counts twice"
    )


def test_a_run_without_workers_does_not_forget_which_batches_are_trained_again(tmp_path):
    before = train_a_part(tmp_path, hold=False)
    saved, _ = serve_and_save(tmp_path)
    assert manifest_of(before)["repeated_batches"] > 0
    assert manifest_of(saved)["repeated_batches"] == manifest_of(before)["repeated_batches"]


@pytest.mark.parametrize("when", ["saved", "restored"])
def test_without_cursors_the_input_is_read_from_its_start(tmp_path, when):
    saved = train_a_part(tmp_path, hold=True, input_cursors=when != "saved")
    assert bool(manifest_of(saved)["cursors"]) == (when != "saved")
    trained, status = train_the_rest(tmp_path, input_cursors=when != "restored")
    assert int(trained.sum()) == BATCHES + saved.step
    assert trained.max() == 2
    said = f"is read from its beginning: {saved.path} does not say where an input was"
    assert status.input == (said if when == "saved" else "")


def test_the_time_of_the_last_batch_is_reported_and_told_to_the_platform(tmp_path):
    TASK["task"] = TASKS[1]
    _, status = train_the_rest(tmp_path, stay_up=False)
    newest = max(member.req_time_s for member in status.members)
    assert newest == FIRST_S + BATCHES - 1
    assert time_point_of(status) == "2023-11-14T23:03:19Z"
