"""Workers in step: tables on parameter servers, and the mean of all dense gradients."""

import itertools
import threading
from typing import ClassVar

import numpy as np
import pytest

import megalith.client as mg
from megalith.errors import RanksDiffer
from megalith.local import local_train
from megalith.worker.input import Input, Mode
from megalith.worker.steps.in_step import InStep
from support.liked_task import drawn
from support.servers import Servers
from support.sync_tasks import MeanLoss
from support.thread_ranks import Meeting, ThreadEngine
from support.waiting import wait_until

IDS = {"user": np.arange(300), "film": np.arange(100)}
SLICES = (
    mg.Slice("bias", 1, mg.Zeros(), mg.Sgd(0.05)),
    mg.Slice("vec", 4, mg.RandomUniform(-0.1, 0.1), mg.Sgd(0.05)),
)


class BySgd(MeanLoss):
    """Rows move by SGD: the pushes of two workers then move them as their sum does."""

    features = (mg.Feature("user", SLICES), mg.Feature("film", SLICES))


class Failing(BySgd):
    def batch(self, number):
        if number == 7:
            raise OSError("the disk is gone")
        return super().batch(number)


class Quiet(BySgd):
    """The input of rank 1 has no twentieth batch until the test says so."""

    goes_on = threading.Event()

    def batch(self, number):
        if number == 39:
            self.goes_on.wait(90)
        return super().batch(number)


def in_step(size, meeting=None):
    meeting = meeting or Meeting(size)
    return [InStep(lambda rank=rank: ThreadEngine(meeting, rank)) for rank in range(size)]


def start(servers, size, task, meeting=None, **settings):
    servers.start_controller()
    servers.start_ps(0)
    for index, each in enumerate(in_step(size, meeting)):
        servers.start_worker(index, in_step=each, task=f"test_dense_sync_tasks:{task}", **settings)


@pytest.fixture(autouse=True)
def named_tasks(monkeypatch):
    """Workers find the tasks of this file by name."""
    import sys
    from types import ModuleType

    module = ModuleType("test_dense_sync_tasks")
    module.BySgd = BySgd
    module.Failing = Failing
    module.Quiet = Quiet
    module.Reordered = Reordered
    module.Uneven = Uneven
    monkeypatch.setitem(sys.modules, "test_dense_sync_tasks", module)


def outcome_of(cluster):
    return wait_until(lambda: (now := cluster.controller.status()).outcome and now, 120)


def blocked_workers(cluster):
    members = cluster.controller.status().members
    return [each.index for each in members if each.role == "worker" and each.is_blocked]


def test_two_workers_in_step_learn_what_one_learns_from_the_joined_batches(tmp_path):
    joined = BySgd(batch_size=64, num_examples=1280, joins=2, scale=2)
    reference = local_train(joined, evaluates=False)
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        start(servers, 2, "BySgd", batch_size=32, num_examples=1280)
        cluster = servers.connect()
        status = outcome_of(cluster)
        assert status.outcome == "succeeded", status.reason
        assert status.global_step == 40  # batches of both workers

        pulled = cluster.pull(IDS, ["bias"])
        rows, variables = reference.read(IDS, ["bias"])
        for table, expected in rows.items():
            np.testing.assert_allclose(pulled.rows[table], expected, rtol=0, atol=1e-6)
        np.testing.assert_allclose(pulled.variables["bias"], variables["bias"], rtol=0, atol=1e-6)


def test_saves_and_stops_hold_workers_that_wait_for_each_other(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        start(servers, 2, "BySgd", batch_size=32, num_examples=32_000_000)
        cluster = servers.connect()
        wait_until(lambda: cluster.controller.training_status() > 10, 60)
        steps = [cluster.controller.save(hold=True).step for _ in range(5)]
        assert steps == sorted(steps)

        cluster.controller.stop("look at data")

        wait_until(lambda: blocked_workers(cluster) == [0, 1], 60)
        held_at = cluster.controller.training_status()
        cluster.controller.resume()
        wait_until(lambda: cluster.controller.training_status() > held_at, 60)


@pytest.mark.parametrize("is_held", [False, True], ids=["input", "hold"])
def test_a_worker_without_input_or_held_is_no_silent_rank(tmp_path, is_held):
    """They answer each other all the time, so no call lasts until --sync-timeout-s."""
    meeting = Meeting(2)
    Quiet.goes_on.clear()
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        start(servers, 2, "Quiet", meeting, batch_size=32, num_examples=1280)
        cluster = servers.connect()
        wait_until(lambda: cluster.controller.training_status() == 38, 60)
        if is_held:
            cluster.controller.stop("look at data")
            wait_until(lambda: blocked_workers(cluster) == [0, 1], 60)
            Quiet.goes_on.set()

        before = meeting.num_exchanges
        wait_until(lambda: meeting.num_exchanges > before + 40, 30)
        Quiet.goes_on.set()
        if is_held:
            cluster.controller.resume()

        status = outcome_of(cluster)
        assert (status.outcome, status.global_step) == ("succeeded", 40), status.reason


class Uneven(BySgd):
    """Worker-0 has three batches less than worker-1."""

    def input(self, mode, index, count):
        numbers = super().input(mode, index, count)
        if index or mode is not Mode.TRAIN:
            return numbers
        return FirstOnes(numbers, 17)


class FirstOnes(Input):
    def __init__(self, numbers, count):
        self._numbers = numbers
        self._count = count

    def batches(self, cursor):
        return itertools.islice(self._numbers.batches(cursor), self._count)

    def remaining(self, cursor):
        return self._count


def test_batches_that_are_left_because_another_worker_is_at_its_end_are_said(tmp_path, caplog):
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        start(servers, 2, "Uneven", batch_size=32, num_examples=1280)
        status = outcome_of(servers.connect())
        assert (status.outcome, status.global_step) == ("succeeded", 34), status.reason
        assert "at its end, so this one ends too; batches that it leaves: 3" in caplog.text


def test_a_worker_that_is_told_to_stop_ends_the_others_with_its_name_until_all_come_back(tmp_path):
    """They do not take it for the end of the training."""
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        start(servers, 2, "BySgd", batch_size=32, num_examples=32_000_000)
        cluster = servers.connect()
        wait_until(lambda: cluster.controller.training_status() > 10, 60)
        servers.stop("worker-1")
        wait_until(lambda: servers.exits["worker-0"].reason, 60)
        assert "worker-1 was told to stop" in servers.exits["worker-0"].reason
        assert servers.exits["worker-0"].status == 1

        servers.stop("worker-0")
        stopped_at = cluster.controller.training_status()
        for index, each in enumerate(in_step(2)):
            servers.start_worker(
                index,
                in_step=each,
                task="test_dense_sync_tasks:BySgd",
                batch_size=32,
                num_examples=32_000_000,
            )
        wait_until(lambda: cluster.controller.training_status() > stopped_at + 10, 60)
        positions = [
            each.position for each in cluster.controller.status().members if each.role == "worker"
        ]
        assert min(positions) * 2 >= stopped_at - 2


def test_an_error_of_one_worker_ends_the_others_with_its_reason(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        start(servers, 2, "Failing", batch_size=32, num_examples=1280)
        for name in ("worker-0", "worker-1"):
            wait_until(lambda name=name: servers.exits[name].reason, 60)
        assert "the disk is gone" in servers.exits["worker-1"].reason
        assert "rank 1 failed: OSError: the disk is gone" in servers.exits["worker-0"].reason
        assert servers.exits["worker-0"].status == servers.exits["worker-1"].status == 1


class Reordered(BySgd):
    """Two variables, which each worker that is made names in another order than the one before."""

    orders: ClassVar = itertools.cycle([("bias", "other"), ("other", "bias")])

    def __init__(self, **options):
        super().__init__(**options)
        zero = np.zeros(1, np.float32)
        names = next(self.orders)
        self.variables = tuple(mg.VariableConfig(name, zero, mg.Sgd(0.05)) for name in names)


def test_workers_that_train_other_models_do_not_begin(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        start(servers, 2, "Reordered", batch_size=32, num_examples=1280)
        for name in ("worker-0", "worker-1"):
            wait_until(lambda name=name: servers.exits[name].reason, 60)
            assert "RanksDiffer: rank 1 differs from rank 0" in servers.exits[name].reason


def test_workers_that_are_not_all_ranks_do_not_begin(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        servers.start_controller()
        servers.start_ps(0)
        (alone,) = in_step(1)
        servers.start_worker(0, in_step=alone, task="test_dense_sync_tasks:BySgd")
        servers.start_worker(1, task="test_dense_sync_tasks:BySgd")
        wait_until(lambda: servers.exits["worker-0"].reason, 60)
        reason = servers.exits["worker-0"].reason
        assert RanksDiffer.__name__ in reason
        assert "the job has 2 workers, and 1 rank was started" in reason
        assert "one of them alone cannot be replaced" in reason


def test_batches_of_monolith_are_those_of_both_workers():
    joined = BySgd(batch_size=64, joins=2).batch(3)
    first, second = drawn(1, 6, 32), drawn(1, 7, 32)
    np.testing.assert_array_equal(
        joined.ids["user"], np.concatenate([first.ids["user"], second.ids["user"]])
    )
