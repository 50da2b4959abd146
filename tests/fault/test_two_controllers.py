"""Two controllers for one model directory whose lock does not reach both: the older one steps
down."""

import signal

import pytest

from megalith.client import errors
from megalith.control import address_file
from megalith.controller.members import journal_file
from support.processes import Processes
from support.waiting import wait_until

SUSPECT_S = 1.0


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as processes:
        yield processes


def test_a_paused_controller_that_was_replaced_steps_down_and_the_run_goes_on_with_the_newer(
    processes,
):
    settings = {"num_ps": 1, "num_workers": 0, "suspect_s": SUSPECT_S}
    first = processes.start_controller(**settings)
    ps = processes.start_member("ps", 0)
    job = processes.job()
    wait_until(lambda: phase(job) == "running", 120)
    epoch = job.status().epoch
    run_id = wait_until(
        lambda: (
            (kept := journal_file.read(processes.model_dir)) and kept.epoch == epoch and kept.run_id
        )
    )
    before = address_file.CONTROLLER.read(processes.model_dir)

    first.pause()
    (
        processes.model_dir / "controller.lock"
    ).unlink()  # as where locks do not reach the second machine
    second = processes.start_controller(**settings)
    wait_until(lambda: address_file.CONTROLLER.read(processes.model_dir) != before)
    job.close()
    newer = processes.job()
    newer.stop(reason="look at data")
    first.signal(signal.SIGCONT)

    assert first.wait() == 1
    assert "a newer controller serves" in first.output()
    wait_until(lambda: phase(newer) == "running", 90)
    status = newer.status()
    assert (status.epoch, status.barrier.reason) == (epoch, "look at data")
    kept = journal_file.read(processes.model_dir)
    assert (kept.run_id, [holder.reason for holder in kept.barrier.holders]) == (
        run_id,
        ["look at data"],
    )
    assert address_file.CONTROLLER.read(processes.model_dir) == status.address
    assert (second.poll(), ps.poll()) == (None, None)


def phase(job):
    try:
        return job.status().phase
    except errors.MegalithError:
        return ""
