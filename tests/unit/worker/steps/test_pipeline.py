"""Overlapping steps, with a cluster and a task of numbers: what is pulled when, what counts, what
is taken again."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.errors import InvalidRequest, OutcomeLost, OutcomeUnknown, Unavailable
from megalith.worker.batches import Batches
from megalith.worker.numbered_input import NumberedInput
from megalith.worker.steps.pipeline import Lesson, Pipeline


class Begun:
    """Settled by whoever asks first."""

    def __init__(self, outcome):
        self._outcome, self.is_settled, self.is_abandoned = outcome, False, False

    def result(self):
        if not self.is_settled:
            self.is_settled, outcome = True, self._outcome
            try:
                self._outcome = (outcome(), None)
            except (Unavailable, OutcomeLost) as error:
                self._outcome = (None, error)
            except OutcomeUnknown:
                self.is_settled = False
                raise
        value, error = self._outcome
        if error is not None:
            raise error
        return value

    def abandon(self, reason):
        self.is_abandoned = True


class FakeCluster:
    """A push is answered when it is asked about.

    A pull notes how many were answered before it was sent.
    """

    def __init__(self):
        self.answered, self.seen, self.begun_pulls, self.failing = [], {}, {}, set()
        self.last = None
        self.unknown, self.lost = (
            {},
            set(),
        )  # how often a push is asked about in vain; pushes that are lost
        self.refused, self.away = (
            set(),
            set(),
        )  # pushes that a server refuses; pulls that find it away

    def pull(self, ids, names):
        return self.begin_pull(ids, names).result()

    def begin_pull(self, ids, names):
        number = int(ids["t"].values[0])
        self.seen.setdefault(number, len(self.answered))
        self.begun_pulls[number] = Begun(lambda: self._pulled(number, ids))
        return self.begun_pulls[number]

    def _pulled(self, number, ids):
        if number in self.away:
            raise Unavailable("away")
        return SimpleNamespace(rows=ids)

    def begin_push(self, number):
        assert self.last is None or self.last.is_settled  # a cluster would wait for it
        self.last = Begun(lambda: self._answer(number))
        return self.last

    def _answer(self, number):
        if self.unknown.get(number, 0):
            self.unknown[number] -= 1
            raise OutcomeUnknown("not answered")
        if number in self.lost:
            raise OutcomeLost("its ps was replaced")
        if number in self.refused:
            raise InvalidRequest("refused by one of its servers")
        if number in self.failing:
            self.failing.discard(number)
            raise Unavailable("away")
        self.answered.append(number)
        return {"n": number}


class FakeTask:
    variables = ()

    def __init__(self):
        self.drawn_by = {}

    def batch(self, number):
        self.drawn_by[number] = threading.current_thread().name
        return number

    def ids(self, batch):
        return {"t": np.array([batch])}

    def num_examples(self, batch):
        return 10


def pipeline_of(cluster, staleness, total=6, prefetch=0, task=None):
    done = []
    task = task or FakeTask()
    input_ = NumberedInput(task.batch, total or 0, 0, 1)
    batches = Batches(task, input_, b"", 0, prefetch, lambda: 0)
    opened.append(batches)
    pipeline = Pipeline(task, cluster, batches, staleness, done.append)
    return pipeline, done


opened = []


@pytest.fixture(autouse=True)
def _close():
    yield
    while opened:
        opened.pop().close()


def push(pulled, drawn):
    assert pulled.rows is drawn.ids  # the ids of the pull are those of the push
    return Lesson(float(drawn.batch), {}, {"number": drawn.batch})


def test_with_a_staleness_of_0_every_pull_sees_all_pushes_before_it():
    cluster = FakeCluster()
    pipeline, done = pipeline_of(cluster, 0)
    for number in range(6):
        pipeline.step(push)
        assert pipeline.position == number + 1
    assert cluster.seen == {number: number for number in range(6)}
    assert [(step.num_examples, step.lesson.loss) for step in done] == [
        (10, float(number)) for number in range(6)
    ]


@pytest.mark.parametrize("staleness", [1, 2, 3, 4])
def test_a_pull_misses_at_most_the_pushes_of_the_last_steps(staleness):
    cluster = FakeCluster()
    pipeline, _ = pipeline_of(cluster, staleness, total=8)
    for _ in range(8):
        pipeline.step(push)
    assert all(number - seen <= staleness for number, seen in cluster.seen.items())
    assert max(number - seen for number, seen in cluster.seen.items()) == staleness
    pipeline.drain()
    assert pipeline.position == 8


def test_steps_count_once_answered_and_a_drain_waits_for_all():
    cluster = FakeCluster()
    pipeline, done = pipeline_of(cluster, 2)
    pipeline.step(push)
    assert (pipeline.position, pipeline.next_position, done) == (0, 1, [])
    pipeline.step(push)
    assert (pipeline.position, pipeline.next_position, len(done)) == (1, 2, 1)
    pipeline.drain()
    assert (pipeline.position, pipeline.next_position, len(done)) == (2, 2, 2)
    assert cluster.begun_pulls[2].is_abandoned  # pulled ahead: it may be old when training goes on


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_step_whose_push_failed_is_taken_again_and_none_is_left_out(staleness):
    cluster = FakeCluster()
    cluster.failing = {2}
    pipeline, done = pipeline_of(cluster, staleness)
    failures = 0
    while pipeline.position < 6:
        try:
            if pipeline.next_position < 6:
                pipeline.step(push)
            else:
                pipeline.drain()
        except Unavailable:
            failures += 1
    assert failures == 1
    assert cluster.answered == list(
        range(6)
    )  # none is pushed after one that failed, and so none twice
    assert len(done) == 6


def test_a_drain_forgives_a_passing_failure_and_the_step_is_next():
    cluster = FakeCluster()
    cluster.failing = {0}
    pipeline, done = pipeline_of(cluster, 2)
    pipeline.step(push)
    pipeline.drain()
    assert (pipeline.position, pipeline.next_position, done) == (0, 0, [])


def test_batches_are_drawn_ahead_by_a_thread_and_not_beyond_the_share():
    task = FakeTask()
    pipeline, _ = pipeline_of(FakeCluster(), 1, total=3, prefetch=2, task=task)
    for _ in range(3):
        pipeline.step(push)
    pipeline.drain()
    assert set(task.drawn_by) == {0, 1, 2}
    assert all(name.startswith("input") for name in task.drawn_by.values())


def test_ids_that_are_none_name_their_table():
    task = FakeTask()
    task.ids = lambda batch: {"t": np.array([0.5])}
    pipeline, _ = pipeline_of(FakeCluster(), 1, task=task)
    with pytest.raises(InvalidRequest, match="table t: ids are float64"):
        pipeline.step(push)


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_a_step_whose_push_is_not_answered_is_not_taken_again_but_asked_about(staleness):
    cluster = FakeCluster()
    cluster.unknown = {2: 3}
    pipeline, done = pipeline_of(cluster, staleness)
    pushed, unknown = [], 0

    def noted(pulled, drawn):
        pushed.append(drawn.batch)
        return push(pulled, drawn)

    while pipeline.position < 6:
        try:
            if pipeline.next_position < 6:
                pipeline.step(noted)
            else:
                pipeline.drain()
        except OutcomeUnknown:
            unknown += 1
            assert pipeline.has_open_push
            assert pipeline.next_position == pipeline.position + 1 == 3
    assert unknown == 3
    assert cluster.answered == list(range(6))
    assert sorted(set(pushed)) == list(range(6))
    assert pushed.count(2) == 1
    assert len(done) == 6


def test_with_a_staleness_of_0_the_call_that_hears_of_an_open_push_takes_no_other_step():
    """Workers in step agree on each; and behind the last one there is none."""
    cluster = FakeCluster()
    cluster.unknown = {1: 2}
    pipeline, done = pipeline_of(cluster, 0, total=2)
    pipeline.step(push)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            pipeline.step(push)
    pipeline.step(push)
    assert (pipeline.position, pipeline.next_position, len(done)) == (2, 2, 2)
    assert cluster.answered == [0, 1]


def test_a_drain_says_that_the_outcome_of_a_push_is_open_and_asks_again_when_told_to():
    cluster = FakeCluster()
    cluster.unknown = {0: 2}
    pipeline, done = pipeline_of(cluster, 2)
    pipeline.step(push)
    for _ in range(2):
        pipeline.drain()
        assert pipeline.has_open_push
        assert (pipeline.position, pipeline.next_position, done) == (0, 1, [])
    pipeline.drain()
    assert not pipeline.has_open_push
    assert (pipeline.position, cluster.answered) == (1, [0])


def test_a_step_of_whose_push_a_part_is_lost_counts_and_is_not_taken_again():
    cluster = FakeCluster()
    cluster.lost = {1}
    pipeline, done = pipeline_of(cluster, 1, total=3)
    for _ in range(3):
        pipeline.step(push)
    pipeline.drain()
    assert cluster.answered == [0, 2]
    assert [step.raised for step in done] == [{"n": 0}, {}, {"n": 2}]


def test_a_push_that_was_refused_ends_the_steps_though_a_pull_failed_for_a_passing_reason_first():
    cluster = FakeCluster()
    cluster.refused = {0}
    cluster.away = {1}
    pipeline, done = pipeline_of(cluster, 2)
    pipeline.step(push)
    with pytest.raises(
        InvalidRequest, match="refused"
    ):  # taken again, it would count twice where it was applied
        pipeline.step(push)
    assert not done
