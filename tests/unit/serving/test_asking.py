"""Which replicas are asked, in which order, and whose answer counts."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.errors import (
    InvalidRequest,
    NotReady,
    PeerUnreachable,
    ShardNotOwned,
    TooStale,
    UnknownTable,
)
from megalith.serving._asking import Asking, NobodyAnswered
from megalith.serving._replica_pool import KnownReplica

ALL = np.ones(1024, np.bool_)
REPLICAS = [KnownReplica("a:1"), KnownReplica("b:1"), KnownReplica("c:1")]


class Pool:
    """Three replicas, always in the same order."""

    def __init__(self):
        self.failures = []

    def holding(self, buckets):
        return REPLICAS

    def link(self, replica):
        return SimpleNamespace(address=replica.address)

    def failed(self, replica):
        self.failures.append(replica.address)


@pytest.fixture
def pool():
    return Pool()


@pytest.mark.parametrize("error", [TooStale, ShardNotOwned])
@pytest.mark.parametrize("hedge_after_s", [0.0, 5.0])
def test_one_that_fails_is_passed_over_at_once(pool, hedge_after_s, error):
    asking = Asking(pool, 10.0, hedge_after_s)

    def ask(link, left_s):
        if link.address != "c:1":
            raise error(f"{link.address} is stale, or has another share")
        return link.address

    assert asking.ask(ALL, ask) == "c:1"
    assert pool.failures == ["a:1", "b:1"]
    asking.close()


def test_an_error_of_the_call_itself_is_raised_and_nobody_else_is_asked(pool):
    asked = []

    def ask(link, left_s):
        asked.append(link.address)
        raise UnknownTable("no such table")

    with pytest.raises(UnknownTable):
        Asking(pool, 10.0, 0.0).ask(ALL, ask)
    assert asked == ["a:1"]
    assert pool.failures == []


@pytest.mark.parametrize("hedge_after_s", [0.0, 0.01])
def test_when_all_fail_the_last_reason_is_raised(pool, hedge_after_s):
    def ask(link, left_s):
        raise NotReady(f"{link.address} starts")

    with pytest.raises(NotReady, match="c:1 starts"):
        Asking(pool, 0.05, hedge_after_s).ask(ALL, ask)


def test_a_slow_one_is_hedged_by_the_next_and_the_first_answer_counts(pool):
    may_end = threading.Event()
    asking = Asking(pool, 60.0, 0.01)

    def ask(link, left_s):
        if link.address == "a:1":
            may_end.wait(60)
        return link.address

    assert asking.ask(ALL, ask) == "b:1"
    assert pool.failures == []
    may_end.set()
    asking.close()


def test_one_that_hangs_leaves_threads_for_the_others(pool):
    asking = Asking(pool, 2.0, 0.001)
    is_over = threading.Event()

    def ask(link, left_s):
        if link.address == "a:1":
            is_over.wait()
        return link.address

    try:
        answers = {asking.ask(ALL, ask) for _ in range(100)}
    finally:
        is_over.set()
        asking.close()

    assert answers <= {"b:1", "c:1"}


def test_an_attempt_leaves_time_for_those_after_it_and_is_made_again(pool):
    asking = Asking(pool, 100.0, 0.0)
    given_s = []
    again = []

    def fails(deadline):
        given_s.append(deadline - time.monotonic())
        raise NobodyAnswered(NotReady("it starts"))

    def answers(deadline):
        given_s.append(deadline - time.monotonic())
        return "answer"

    def attempts():
        again.append(1)
        return [fails, fails, answers] if len(again) == 2 else [fails]

    assert asking.first_answer(attempts) == "answer"
    assert given_s == pytest.approx([100, 100 / 3, 50, 100], abs=10)


def test_a_call_waits_for_somebody_who_can_say_where_replicas_are(pool):
    """There was none yet, and then the controller was started again."""
    asking = Asking(pool, 10.0, 0.0)
    again = []

    def attempts():
        again.append(1)
        if len(again) < 3:
            raise PeerUnreachable("no controller")
        return [lambda deadline: "answer"]

    assert asking.first_answer(attempts) == "answer"
    again.clear()
    with pytest.raises(PeerUnreachable, match="no controller"):
        Asking(pool, 0.04, 0.0).first_answer(attempts)


def test_a_negative_wait_is_refused(pool):
    with pytest.raises(InvalidRequest, match="hedge_after_s=-1"):
        Asking(pool, 1.0, -1)
