"""Which replicas a client knows and asks, and whose channels it closes."""

import numpy as np
import pytest

from megalith.errors import PeerUnreachable
from megalith.serving._replica_pool import KnownReplica, ReplicaPool
from megalith.wire.routing import share_of_buckets

ALL = np.ones(1024, np.bool_)


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def at_once(work):
    work()


def pool_of(found, clock):
    return ReplicaPool(lambda: found, 1 << 20, clock, at_once)


def asked(pool, buckets=ALL):
    return [replica.address for replica in pool.holding(buckets)]


def test_they_take_turns_and_one_that_failed_comes_last_for_a_while(clock):
    found = [KnownReplica("a:1"), KnownReplica("b:1")]
    pool = pool_of(found, clock)
    assert {asked(pool)[0], asked(pool)[0]} == {"a:1", "b:1"}
    pool.failed(found[0])
    assert [asked(pool)[0] for _ in range(4)] == ["b:1"] * 4
    clock.now_s += 5
    assert {asked(pool)[0], asked(pool)[0]} == {"a:1", "b:1"}


def test_channels_of_replicas_that_are_gone_are_closed(clock):
    found = [KnownReplica("127.0.0.1:1")]
    pool = pool_of(found, clock)
    for number in range(2, 20):
        asked(pool)
        pool.link(found[0])
        pool.failed(found[0])
        found[0] = KnownReplica(f"127.0.0.1:{number}")
        clock.now_s += 30
    asked(pool)
    assert len(pool._links) <= 3
    assert len(pool._failed_s) <= 3
    pool.close()


def test_those_of_a_share_are_asked_for_its_buckets_only(clock):
    halves = [KnownReplica("a:1", 0, 2), KnownReplica("b:1", 1, 2)]
    pool = pool_of(halves, clock)
    assert pool.cuts() == [2]
    assert asked(pool, share_of_buckets(1, 2)) == ["b:1"]
    with pytest.raises(PeerUnreachable, match="no replica that holds these ids"):
        asked(pool)


def test_while_replicas_of_more_shares_start_those_of_before_are_asked(clock):
    found = [KnownReplica("a:1", 0, 2), KnownReplica("b:1", 1, 2), KnownReplica("c:1", 0, 3)]
    pool = pool_of(found, clock)
    assert pool.cuts() == [2]
    assert asked(pool, share_of_buckets(0, 2)) == ["a:1"]

    found += [KnownReplica("d:1", 1, 3), KnownReplica("e:1", 2, 3)]
    clock.now_s += 2
    assert pool.cuts() == [3, 2]
    assert asked(pool, share_of_buckets(1, 3)) == ["d:1"]

    found.pop()  # it died
    clock.now_s += 2
    assert pool.cuts() == [2]


def test_whole_replicas_that_failed_leave_the_shares_to_answer(clock):
    whole = [KnownReplica("a:1"), KnownReplica("b:1")]
    halves = [KnownReplica("c:1", 0, 2), KnownReplica("d:1", 1, 2)]
    pool = pool_of(whole + halves, clock)
    assert pool.cuts() == [1, 2]
    pool.failed(whole[0])
    assert pool.cuts() == [1, 2]
    pool.failed(whole[1])
    assert pool.cuts() == [2, 1]
    pool.failed(halves[1])
    assert pool.cuts() == [1, 2]
    clock.now_s += 5
    assert pool.cuts() == [1, 2]


def test_a_share_that_nobody_holds_is_named_when_it_is_asked_for(clock):
    pool = pool_of([KnownReplica("a:1", 0, 2)], clock)
    assert pool.cuts() == [2]
    with pytest.raises(PeerUnreachable, match="no replica that holds these ids"):
        asked(pool, share_of_buckets(1, 2))


def test_nobody_waits_while_it_is_found_out_where_known_replicas_are(clock):
    found = [KnownReplica("a:1")]
    begun = []
    pool = ReplicaPool(lambda: list(found), 1 << 20, clock, begun.append)
    assert asked(pool) == ["a:1"]
    found[:] = [KnownReplica("b:1")]
    clock.now_s += 2
    assert asked(pool) == ["a:1"]
    clock.now_s += 2
    assert asked(pool) == ["a:1"]
    assert len(begun) == 1  # one at a time
    begun.pop()()
    assert asked(pool) == ["b:1"]
    assert len(begun) == 1  # two seconds have passed since the first one began


def test_those_of_before_are_asked_while_nobody_says_where_they_are(clock):
    answers = [[KnownReplica("a:1")], PeerUnreachable("no controller"), []]

    def find():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    pool = ReplicaPool(find, 1 << 20, clock, at_once)
    while answers:
        assert asked(pool) == ["a:1"]
        clock.now_s += 2


def test_a_process_that_gets_no_thread_for_a_moment_looks_again_later(clock):
    found = [KnownReplica("a:1")]
    is_full = []

    def start(work):
        if is_full:
            raise RuntimeError("can't start new thread")
        work()

    pool = ReplicaPool(lambda: list(found), 1 << 20, clock, start)
    assert asked(pool) == ["a:1"]
    found[:] = [KnownReplica("b:1")]
    is_full.append(True)
    clock.now_s += 2
    assert asked(pool) == ["a:1"]
    is_full.clear()
    clock.now_s += 2
    assert asked(pool) == ["b:1"]
