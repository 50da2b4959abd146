"""Rounds of kill -9: each trains a job to its end while one or two of its processes die and are
started again.

`MEGALITH_FAULT_ROUNDS` says how many rounds (default 1), `MEGALITH_FAULT_SEED` which (default 1).
After `scripts/test-services start` the processes find each other through a ZooKeeper of their own,
which is a victim too.
"""

import os
import random
import re
import time

import pytest

from megalith.controller.members import journal_file
from support.back_ends import HOW_TO_START, OwnZooKeeper, can_start_zookeeper, fresh_job
from support.processes import Processes
from support.waiting import wait_until

ROUNDS = int(os.environ.get("MEGALITH_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("MEGALITH_FAULT_SEED", "1"))
STEPS, BATCH_SIZE = 1600, 256  # some seconds: the second victim dies before the job ends
PROCESSES = ("worker-1", "ps-1", "worker-0", "controller", "ps-0")
SINGLES = (("controller",), ("worker-1",), ("ps-1",), ("worker-0",), ("zookeeper",))


def victims_of(number):
    """The first round is a pair, then comes each kind of process alone, then random pairs."""
    if number == 0:
        return ("ps-1", "worker-0")
    if number <= len(SINGLES):
        return SINGLES[number - 1]
    return tuple(random.Random(f"{SEED}-{number}").sample([*PROCESSES, "zookeeper"], 2))


class Job:
    """A job of two ps and two workers whose processes can be killed and started again, by name."""

    def __init__(self, processes, zookeeper):
        self.processes, self.zookeeper = processes, zookeeper
        self.found_by = {"model_dir": processes.model_dir}
        if zookeeper is not None:
            name = {
                "job": fresh_job(),
                "discovery": f"zookeeper://{zookeeper.address}?ttl_s=2",
            }
            self.found_by = name
        self.alive = {name: self.start(name) for name in sorted(PROCESSES)}

    def start(self, name):
        role, _, index = name.partition("-")
        if name == "zookeeper":
            return self.zookeeper.start()
        if name == "controller":
            settings = {"num_ps": 2, "num_workers": 2, "suspect_s": 2, **self.found_by}
            return self.processes.start_controller(**settings)
        task = {"batch_size": BATCH_SIZE, "num_examples": BATCH_SIZE * STEPS, "heartbeat_s": 0.1}
        task = task if role == "worker" else {}
        return self.processes.start(
            role, name, index=index, join_timeout_s=120, **self.found_by, **task
        )

    def is_training(self, control, moment):
        """Every worker has reported more than `moment` batches.

        AssertionError once a process has ended.
        """
        for process in self.alive.values():
            assert process.poll() is None, process.output()
        return min(positions(control)) > moment

    def kill(self, name):
        (self.zookeeper if name == "zookeeper" else self.alive[name]).kill()

    def start_again(self, name):
        started = self.start(name)
        if name != "zookeeper":
            self.alive[name] = started


@pytest.fixture
def job(tmp_path):
    with Processes(tmp_path) as processes:
        if not can_start_zookeeper():
            yield Job(processes, None)
            return
        zookeeper = OwnZooKeeper(tmp_path / "zk")
        zookeeper.start()
        try:
            yield Job(processes, zookeeper)
        finally:
            zookeeper.close()


def positions(control):
    """Batches done, by worker, as reported."""
    return [member.position for member in control.status().members if member.role == "worker"]


def journaled(job):
    """Batches done, by worker, as a new controller would find them."""
    return [worker.position for worker in journal_file.read(job.processes.model_dir).workers]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_job_reaches_its_step_count_whoever_dies(job, number):
    chance, victims = random.Random(f"{SEED}-{number}-when"), victims_of(number)
    if "zookeeper" in victims and job.zookeeper is None:
        pytest.skip(f"no zookeeper to kill: {HOW_TO_START}")
    control = job.processes.job(60)
    wait_until(
        lambda: (job.processes.model_dir / "controller_server_addr.txt").exists(),
        what="a controller",
    )
    moment = chance.randrange(5, 50)
    wait_until(lambda: job.is_training(control, moment), 120, "training")
    wait_until(lambda: min(journaled(job)) > 0, what="a journal of it")
    before, stood = dict(job.alive), positions(control)
    if "controller" in victims:
        stood = journaled(job)  # with it the newest reports die
    for victim in victims:
        job.kill(victim)
        time.sleep(
            chance.random()
        )  # the moments between two deaths differ, and no event marks them
    for victim in victims:
        job.start_again(victim)
    statuses = {name: process.wait(240) for name, process in job.alive.items()}
    assert statuses == dict.fromkeys(statuses, 0), job.alive["controller"].output()
    survivors = [name for name in before if name not in victims]
    assert all(
        job.alive[name] is before[name] for name in survivors
    )  # nobody else was started again
    (steps,) = re.findall(
        r"job ended succeeded=True .* step=(\d+)", job.alive["controller"].output()
    )
    assert (
        int(steps) == STEPS
    )  # every batch was trained, and counts once, also one that was trained again
    assert (job.processes.model_dir / f"model.ckpt-{steps}" / "manifest.json").exists()
    for index, name in enumerate(("worker-0", "worker-1")):
        (position,) = re.findall(
            rf"training position=(\d+) of {STEPS // 2}", job.alive[name].output()
        )
        assert int(position) >= (stood[index] if name in victims else 0), (
            f"{name} goes on where it stood"
        )
