"""Calls of several ranks: what they give, and how they end together."""

import threading

import numpy as np
import pytest

from megalith.collective.horovod import HorovodEngine
from megalith.collective.means import mean_gradients
from megalith.collective.ranks import Ranks
from megalith.errors import (
    RankFailed,
    RanksDiffer,
    RankSilent,
    ShapeMismatch,
    UnknownVariable,
)
from support.thread_ranks import Meeting, ThreadEngine, all_of, on_ranks


class SixCalls:
    """A module like Horovod's, whose processes are threads."""

    def __init__(self, meeting, rank):
        self._engine = ThreadEngine(meeting, rank)
        self._meeting = meeting
        self.is_initialized = False

    def init(self):
        self.is_initialized = True

    def rank(self):
        assert self.is_initialized
        return self._engine.rank

    def size(self):
        return self._engine.size

    def allgather(self, tensor, name=None):
        return np.concatenate(self._meeting.exchanged(self._engine.rank, np.array(tensor)))

    def broadcast(self, tensor, root_rank, name=None):
        return self._meeting.exchanged(self._engine.rank, np.array(tensor))[root_rank]

    def broadcast_variables(self, variables, root_rank):
        return [self.broadcast(each, root_rank) for each in variables]


def on_threads(size, call):
    return all_of(on_ranks(size, call))


def on_horovod(size, call):
    meeting = Meeting(size)
    found = [None] * size

    def run(rank):
        found[rank] = call(Ranks(HorovodEngine(SixCalls(meeting, rank))))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize(
    ("gradients", "error", "message"),
    [
        ({"w": np.ones((3, 2))}, ShapeMismatch, r"variable w: the gradient is \[3, 2\]"),
        ({"v": np.ones(1)}, UnknownVariable, "no variable 'v'"),
    ],
)
def test_a_gradient_that_is_of_no_variable_is_told_by_its_rank(gradients, error, message):
    """Workers in step average before a server looks at it."""

    def mean(ranks):
        mine = gradients if ranks.index == 1 else {"w": np.ones((2, 3))}
        with ranks.ending_together():
            return mean_gradients(ranks, mine, {"w": (2, 3)})

    first, second = on_ranks(2, mean)
    assert type(first) is RankFailed
    with pytest.raises(error, match=message):
        raise second


def test_a_rank_without_a_gradient_and_one_of_another_dtype_have_a_mean():
    def mean(ranks):
        by_rank = [{"w": np.ones(3, np.float64)}, {}, {"w": np.full(3, 2, np.float16)}]
        return mean_gradients(ranks, by_rank[ranks.index], {"w": (3,)})["w"]

    for found in all_of(on_ranks(3, mean)):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, np.full(3, 1.5, np.float32))


@pytest.mark.parametrize("run", [on_threads, on_horovod])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_rank_gets_what_the_others_give(run, size):
    def call(ranks):
        index = ranks.index
        parts = [np.full(index + to, 10 * index + to, np.int64) for to in range(size)]
        return (
            ranks.gather(np.array([index, 7], np.int64)),
            [part.tolist() for part in ranks.exchange(parts)],
            ranks.total(np.full((2, 2), index + 0.5, np.float32)),
            ranks.gather_texts(f"rank {index} äö"),
            ranks.told("first" if index == 0 else "other"),
            ranks.first_of(np.full((2, 1), index, np.float32)),
        )

    for index, found in enumerate(run(size, call)):
        gathered, exchanged, total, texts, told, first = found
        assert gathered.tolist() == [[rank, 7] for rank in range(size)]
        assert exchanged == [[10 * rank + index] * (rank + index) for rank in range(size)]
        assert total.tolist() == [[sum(range(size)) + size / 2] * 2] * 2
        assert texts == [f"rank {rank} äö" for rank in range(size)]
        assert told == "first"
        assert first.tolist() == [[0], [0]]


def test_a_mean_is_over_the_ranks_that_have_a_gradient():
    shapes = {"a": (2,), "b": (1, 2), "c": (3,)}

    def call(ranks):
        mine = {"a": np.full(2, ranks.index, np.float32)}
        if ranks.index == 1:
            mine["b"] = np.full((1, 2), 8, np.float32)
        return mean_gradients(ranks, mine, shapes)

    for means in all_of(on_ranks(3, call)):
        assert {name: mean.tolist() for name, mean in means.items()} == {"a": [1, 1], "b": [[8, 8]]}


def test_an_error_is_told_whichever_call_the_others_wait_in():
    def call(ranks):
        with ranks.ending_together():
            if ranks.index == 2:
                raise ValueError("wrong")
            if ranks.index:
                ranks.exchange([np.zeros(1)] * 3)
            ranks.total(np.zeros(5, np.float32))

    first, second, third = on_ranks(3, call)
    assert type(third) is ValueError
    for error in (first, second):
        assert type(error) is RankFailed
        assert str(error) == "rank 2 failed: ValueError: wrong"


def test_an_error_that_is_no_utf_8_is_told_too():
    def call(ranks):
        with ranks.ending_together():
            if ranks.index:
                raise ValueError("no columns in day-\udcff.csv")
            ranks.barrier()

    first, second = on_ranks(2, call)
    assert type(first) is RankFailed
    assert str(first) == "rank 1 failed: ValueError: no columns in day-\\udcff.csv"
    assert type(second) is ValueError


def test_ranks_that_are_somewhere_else_are_an_error_on_all():
    def call(ranks):
        if ranks.index == 0:
            ranks.gather(np.zeros(1))
        else:
            ranks.total(np.zeros(2, np.float32))

    for error in on_ranks(2, call):
        assert type(error) is RanksDiffer
        assert "rank 1 is not where rank 0 is: call 0, total of 8, and not" in str(error)


def test_shapes_that_differ_are_an_error_on_all():
    for error in on_ranks(2, lambda ranks: ranks.total(np.zeros(3 + ranks.index, np.float32))):
        assert type(error) is RanksDiffer


def test_what_differs_at_the_start_is_said_with_both_values():
    def call(ranks):
        ranks.check_equal({"seed": "1", "rate": "0.5" if ranks.index else "0.1"})

    for error in on_ranks(2, call):
        assert type(error) is RanksDiffer
        assert "rank 1 differs from rank 0 in rate: '0.5', and on rank 0 '0.1'" in str(error)


def test_a_rank_that_never_comes_is_waited_for_as_long_as_the_limit_says():
    def call(ranks):
        if ranks.index == 0:
            ranks.barrier()

    error, nothing = on_ranks(2, call, timeout_s=0.2)
    assert nothing is None
    assert type(error) is RankSilent


def test_after_an_error_in_a_call_nothing_more_is_told():
    meeting = Meeting(2, timeout_s=0.1)
    ranks = Ranks(ThreadEngine(meeting, 0))
    with pytest.raises(RankSilent), ranks.ending_together():
        ranks.barrier()
    assert ranks.is_broken
