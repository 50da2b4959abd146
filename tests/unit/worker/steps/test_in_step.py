"""Workers in step: what they answer each other between two steps, and how they end together."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from megalith.collective.same_model import model_by_name
from megalith.errors import RankFailed, RanksDiffer
from megalith.schema import Sgd, VariableConfig
from megalith.worker.steps.in_step import InStep, WorkerStopped
from support.thread_ranks import Meeting, ThreadEngine
from support.waiting import wait_until

BIAS = VariableConfig("bias", np.zeros(1, np.float32), Sgd(1.0))


class Worker:
    """A worker in step, its gate, and whether it was told to stop."""

    def __init__(self, meeting, rank):
        self.in_step = InStep(lambda: ThreadEngine(meeting, rank))
        self.gate_is_open = True
        self.is_stopping = False
        self.looks = 0  # at the gate

    def begin(self, model=()):
        self.in_step.begin(
            self.in_step.count, dict(model), self._may_step, lambda: self.is_stopping
        )

    def _may_step(self):
        self.looks += 1
        return self.gate_is_open

    def share(self, gradient):
        return self.in_step.share({"bias": np.array([gradient], np.float32)}, (BIAS,))


@pytest.fixture
def meeting():
    return Meeting(2, timeout_s=30)


@pytest.fixture
def workers(meeting, threads):
    both = [Worker(meeting, rank) for rank in range(2)]
    list(threads.map(Worker.begin, both))
    yield both
    for worker in both:
        worker.in_step.stop_waiting()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_workers_whose_variables_are_in_another_order_do_not_begin(meeting, threads):
    """The mean of two gradients of one shape would be of two variables."""
    other = VariableConfig("other", np.zeros(1, np.float32), Sgd(1.0))
    models = [model_by_name((), (BIAS, other)), model_by_name((), (other, BIAS))]
    both = [Worker(meeting, rank) for rank in range(2)]
    begun = [threads.submit(each.begin, model) for each, model in zip(both, models, strict=True)]
    for each in begun:
        with pytest.raises(RanksDiffer, match="rank 1 differs from rank 0 in variable bias"):
            each.result(30)


def test_the_first_worker_gets_the_mean_and_the_other_nothing(workers, threads):
    answers = list(threads.map(lambda each: each.in_step.all_go_on(True), workers))
    assert answers == [True, True]
    first, second = threads.map(lambda each, gradient: each.share(gradient), workers, (1.0, 4.0))
    assert first["bias"].tolist() == [2.5]
    assert second == {}


def test_a_worker_whose_gate_closes_after_its_answer_ends_the_step_of_all(workers, threads):
    """If it went alone, the others would wait for it in the middle of their step."""
    first, second = workers
    asked = threads.submit(first.in_step.all_go_on, True)
    wait_until(lambda: first.looks > 0)
    first.gate_is_open = False
    looks = first.looks
    wait_until(lambda: first.looks > looks)
    answers = [second.in_step.all_go_on(True), asked.result(30)]
    assert answers == [True, True]
    assert list(threads.map(lambda each: each.share(1.0), workers)) == [None, None]
    answers = list(threads.map(lambda each: each.in_step.all_go_on(True), workers))
    assert answers == [False, False]


def test_a_worker_that_waits_answers_again_and_again(workers, meeting, threads):
    """So no call of the others lasts as long as its wait."""
    first, second = workers
    asked = threads.submit(first.in_step.all_go_on, True)
    with second.in_step.waiting():
        wait_until(lambda: meeting.num_exchanges > 40)
        assert not asked.done()

    assert second.in_step.all_go_on(True)
    assert asked.result(30)


def test_a_worker_whose_push_takes_long_is_not_missed_by_those_that_have_pushed(
    workers, meeting, threads
):
    first, second = workers
    list(threads.map(lambda each: each.share(1.0), workers))
    first.in_step.stop_waiting()
    asked = threads.submit(first.in_step.all_go_on, True)
    exchanges = meeting.num_exchanges
    wait_until(lambda: meeting.num_exchanges > exchanges + 40)
    second.in_step.stop_waiting()
    assert second.in_step.all_go_on(True)
    assert asked.result(30)


def test_a_worker_that_waits_hears_that_another_one_is_at_its_end(workers, threads):
    first, second = workers
    asked = threads.submit(first.in_step.all_go_on, False)
    with second.in_step.waiting():
        wait_until(lambda: second.in_step.is_over)

    assert not second.in_step.all_go_on(False)
    assert not asked.result(30)


def test_a_worker_that_waits_hears_that_another_one_has_failed(workers, threads):
    first, second = workers
    told = threads.submit(first.in_step.fail, ValueError("wrong"))
    with second.in_step.waiting():
        wait_until(lambda: second.in_step.is_over)

    with second.in_step.waiting():
        wait_until(lambda: second.in_step.is_over)
    with pytest.raises(RankFailed, match="rank 0 failed: ValueError: wrong"):
        second.in_step.all_go_on(True)
    told.result(30)


def test_a_worker_that_was_told_to_stop_is_named_by_all_of_them(workers, threads):
    workers[1].is_stopping = True
    for worker in workers:
        asked = threads.submit(worker.in_step.all_go_on, True)
        worker.answer = asked
    for worker in workers:
        with pytest.raises(WorkerStopped, match="worker-1 was told to stop"):
            worker.answer.result(30)
