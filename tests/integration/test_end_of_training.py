"""How training ends by itself: at the end of the data, or at a step."""

import numpy as np

from support.dated_task import DAY_S, FIRST_S
from support.servers import Servers
from support.waiting import wait_until


def run_to_the_end(model_dir, **task):
    """(outcome, global step, batches done by each worker) of a job of two workers."""
    with Servers(model_dir, num_ps=1, num_workers=2) as servers:
        servers.start_all(batch_size=64, **task)
        job = servers.connect().controller
        status = wait_until(lambda: (status := job.status()).outcome and status, 100)
        return (
            status.outcome,
            status.global_step,
            [m.position for m in status.members if m.role == "worker"],
        )


def test_training_ends_at_the_end_of_the_data(tmp_path):
    assert run_to_the_end(tmp_path, num_examples=64 * 21) == ("succeeded", 21, [11, 10])


def test_training_ends_at_max_steps_and_a_job_that_is_there_already_takes_none(tmp_path):
    outcome, step, done = run_to_the_end(tmp_path, max_steps=20)
    assert outcome == "succeeded"
    assert (
        20 <= step <= 21
    )  # the worker that was in a step when the other one reached 20 finishes it
    assert sum(done) == step
    assert run_to_the_end(tmp_path, max_steps=20) == ("succeeded", step, [0, 0])


def test_the_data_time_of_a_tasks_batches_decides_which_rows_expire(tmp_path):
    """Twenty batches, each of a day of its own, in a table that keeps rows for five days."""
    with Servers(tmp_path, num_ps=2, num_workers=1) as servers:
        servers.start_all(batch_size=1, num_examples=20, task="support.dated_task:make_task")
        cluster = servers.connect()
        status = wait_until(lambda: (status := cluster.controller.status()).outcome and status, 100)
        [worker] = [member for member in status.members if member.role == "worker"]
        assert worker.metrics == {"day": 9.5}

        # Each server has seen the days of its own rows only, so the last day of all goes to both.
        newest = {"seen": (np.arange(100, 164), np.zeros((64, 1), np.float32))}
        cluster.push(newest, req_time_s=FIRST_S + 19 * DAY_S + 3600)
        assert cluster.expire() == {"seen": 15}
        rows = cluster.pull({"seen": np.arange(20)}).rows["seen"]
        np.testing.assert_array_equal(rows[:, 0], [0] * 15 + [1] * 5)
