"""How training ends by itself: at the end of the data, or at a step."""

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
