"""How fresh an answer is when it has come, and what is refused for it."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.errors import NotReady, TooStale
from megalith.protos import prediction_pb2, replica_pb2
from megalith.serving._asking import Asking
from megalith.serving._client import ServingClient
from megalith.serving._replica_pool import KnownReplica

SAID_US = 200_000  # how stale each replica takes itself for


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


class Pool:
    """Replicas by name, which answer after the seconds that the test says."""

    def __init__(self, clock, seconds, share_count=1, dims=None):
        self._clock = clock
        self._seconds = seconds
        self._dims = dims or dict.fromkeys(seconds, 1)
        self.share_count = share_count
        self.asked = []
        self.allowed_s = []  # for each answer

    def holding(self, buckets):
        names = list(self._seconds)
        if self.share_count > 1:  # the n-th holds the n-th share
            first = int(np.flatnonzero(buckets)[0])
            names = [names[first * self.share_count // buckets.size]]
        return [KnownReplica(name) for name in names]

    def link(self, replica):
        def answer(*_, timeout=0.0):
            self.asked.append(replica.address)
            self.allowed_s.append(timeout)
            self._clock.now_s += self._seconds[replica.address]
            return replica_pb2.Freshness(staleness_us=SAID_US)

        def reply(message):
            return lambda *_, timeout: message(freshness=answer())

        return SimpleNamespace(
            lookups=SimpleNamespace(
                ask=lambda call, unary, left_s: call.take(unary(call.message(), timeout=left_s))
            ),
            rows=SimpleNamespace(
                Lookup=lambda request, timeout: _with_rows(
                    request, answer(timeout=timeout), self._dims[replica.address]
                ),
                ReadVariables=reply(replica_pb2.ReadVariablesResponse),
            ),
            predictions=SimpleNamespace(
                Features=reply(prediction_pb2.FeaturesResponse),
                Predict=reply(prediction_pb2.PredictResponse),
            ),
        )

    def cuts(self):
        return [self.share_count]

    def failed(self, replica):
        pass


def _with_rows(request, fresh, dim):
    rows = [bytes(4 * dim * len(part.ids) // 8) for part in request.tables]
    return replica_pb2.LookupResponse(rows=rows, freshness=fresh, dims=[dim] * len(rows))


@pytest.fixture
def clock():
    return Clock()


def client_of(clock, seconds, share_count=1, dims=None):
    pool = Pool(clock, seconds, share_count, dims)
    return ServingClient(pool, Asking(pool, 1e6, 0.0), 0.0, lambda: None, clock), pool


ANSWERS = {
    "lookup": lambda client, **limit: client.lookup({"t": [1]}, **limit),
    "features": lambda client, **limit: client.features({}, **limit),
    "predict": lambda client, **limit: client.predict({}, **limit),
}


@pytest.mark.parametrize("ask", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_was_long_on_its_way_is_as_stale_as_it_is(clock, ask):
    client, _ = client_of(clock, {"slow": 4.0})
    assert ask(client).freshness.staleness_s == pytest.approx(4.2)


@pytest.mark.parametrize(
    "ask", [*ANSWERS.values(), lambda client, **limit: client.variables([], **limit)]
)
def test_an_answer_that_became_too_stale_on_its_way_is_asked_of_another_replica(clock, ask):
    client, pool = client_of(clock, {"slow": 4.0, "fast": 0.5})
    ask(client, max_staleness_s=1.0)
    assert pool.asked == ["slow", "fast"]


def test_what_one_share_has_grows_stale_while_another_one_is_asked(clock):
    client, _ = client_of(clock, {"fast": 0.0, "slow": 4.0}, share_count=2)
    ids = np.arange(100)
    assert client.lookup({"t": ids}).freshness.staleness_s == pytest.approx(4.2)
    client, _ = client_of(clock, {"fast": 0.5, "as fast": 0.5}, share_count=2)
    with pytest.raises(TooStale, match=r"the time that it took included, and 1\.000 s"):
        client.lookup({"t": ids}, max_staleness_s=1.0)


@pytest.mark.parametrize("num_ids", [0, 1, 100])
def test_rows_of_two_widths_are_never_merged(clock, num_ids):
    client, _ = client_of(clock, {"new": 0.0, "old": 0.0}, 2, {"new": 8, "old": 4})
    with pytest.raises(NotReady, match=r"table t: rows have \[4, 8\] numbers"):
        client.lookup({"t": np.arange(num_ids)})
    client, _ = client_of(clock, {"a": 0.0, "b": 0.0}, 2, {"a": 8, "b": 8})
    assert client.lookup({"t": np.arange(num_ids)}).rows["t"].shape == (num_ids, 8)


class Waiting:
    """A clock by which answers take their time."""

    @property
    def now_s(self):
        return time.monotonic()

    @now_s.setter
    def now_s(self, then_s):
        time.sleep(max(0.0, then_s - time.monotonic()))

    def __call__(self):
        return self.now_s


def test_all_shares_together_have_the_time_of_one_call():
    client, pool = client_of(Waiting(), {"slow": 0.3, "fast": 0.0}, 2)
    client.lookup({"t": np.arange(100)})
    first_s, second_s = pool.allowed_s
    assert second_s <= first_s - 0.3
