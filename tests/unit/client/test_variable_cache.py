import threading
from types import SimpleNamespace

import numpy as np
import pytest

from megalith.client import VariableCache, errors


class Remote:
    """A cluster of one variable; reads wait for `gate`."""

    def __init__(self, value=5.0):
        self.value, self.reads, self.error = value, 0, None
        self.gate = threading.Event()
        self.gate.set()

    def begin_pull(self, *, variables):
        return Read(self, variables)

    def pull(self, variables):
        assert self.gate.wait(30)
        self.reads += 1
        if self.error:
            raise self.error
        return SimpleNamespace(variables={name: np.array([self.value]) for name in variables})


class Read:
    """A pull that the servers answer as soon as the gate is open, asked for or not."""

    def __init__(self, remote, variables):
        self._remote, self._variables, self._answer = remote, variables, None
        self.is_abandoned = False
        self.is_answered  # noqa: B018

    @property
    def is_answered(self):
        if self._remote.gate.is_set():
            self._answered()
        return self._answer is not None

    def result(self):
        value, error = self._answered()
        if error:
            raise error
        return value

    def abandon(self, reason):
        self.is_abandoned = True

    def _answered(self):
        if self._answer is None:
            try:
                self._answer = self._remote.pull(self._variables), None
            except errors.MegalithError as error:
                self._answer = None, error
        return self._answer


def fetched(cache):
    """The fetch that is under way, answered."""
    assert cache._fetch.is_answered
    return cache


@pytest.mark.golden("G24")
def test_a_copy_changes_when_what_was_fetched_is_assigned():
    remote = Remote(5.0)
    with VariableCache(remote, ["v"]) as cache:
        assert cache.values["v"] == 5
        remote.value += 2
        assert cache.values["v"] == 5
        cache.fetch()
        cache.assign()
        assert cache.values["v"] == 7


@pytest.mark.golden("G24")
def test_a_step_sees_a_change_within_two_steps():
    remote = Remote(5.0)
    with VariableCache(remote, ["v"]) as cache:
        with cache.step() as values:
            assert values["v"] == 5
            fetched(cache)
            remote.value -= 1
        with cache.step() as values:
            assert values["v"] == 5
            fetched(cache)
        with cache.step() as values:
            assert values["v"] == 4


def test_a_slow_fetch_does_not_hold_a_step_up_until_the_bound():
    remote = Remote()
    with VariableCache(remote, ["v"], max_lag_steps=3) as cache:
        with cache.step():
            fetched(cache)
        remote.gate.clear()
        lags = []
        for _ in range(3):
            with cache.step():
                lags.append(cache.lag_steps)
        assert lags == [1, 2, 3]
        remote.value = 9.0
        threading.Timer(0.05, remote.gate.set).start()
        with cache.step() as values:  # waits
            assert values["v"] == 9
            assert cache.lag_steps <= 3


def test_a_lag_of_zero_fetches_before_each_step():
    remote = Remote()
    with VariableCache(remote, ["v"], max_lag_steps=0) as cache:
        for value in (1.0, 2.0, 3.0):
            remote.value = value
            with cache.step() as values:
                assert values["v"] == value
    assert remote.reads == 3


def test_copies_cannot_be_written():
    with VariableCache(Remote(), ["v"]) as cache, pytest.raises(ValueError, match="read-only"):
        cache.values["v"][0] = 1


def test_a_failed_fetch_is_raised_and_the_next_one_tried():
    remote = Remote()
    with VariableCache(remote, ["v"], max_lag_steps=0) as cache:
        remote.error = errors.PeerUnreachable("nobody there")
        with pytest.raises(errors.PeerUnreachable), cache.step():
            pass
        remote.error = None
        with cache.step() as values:
            assert values["v"] == 5


def test_refresh_starts_over():
    remote = Remote()
    with VariableCache(remote, ["v"]) as cache:
        assert cache.values["v"] == 5
        remote.value = 6.0
        cache.refresh()
        assert cache.values["v"] == 6


def test_a_variable_twice_or_a_negative_bound_is_refused():
    with pytest.raises(errors.DuplicateIds, match="cached twice"):
        VariableCache(Remote(), ["v", "v"])
    with pytest.raises(errors.InvalidSetting, match="negative"):
        VariableCache(Remote(), ["v"], max_lag_steps=-1)


def test_close_leaves_no_fetch_under_way_and_no_thread():
    remote = Remote()
    threads = threading.active_count()
    cache = VariableCache(remote, ["v"])
    cache.fetch()
    cache.close()
    assert remote.reads == 1
    assert cache._fetch is None
    assert threading.active_count() == threads


def test_a_refresh_gives_up_the_fetch_that_is_under_way():
    remote = Remote()
    with VariableCache(remote, ["v"]) as cache:
        cache.fetch()
        first = cache._fetch
        remote.value = 6.0
        cache.refresh()
        assert first.is_abandoned
        assert cache.values["v"] == 6


def test_a_fetch_that_fails_after_the_last_step_is_said_once(caplog):
    remote = Remote()
    cache = VariableCache(remote, ["v"])
    assert cache.values["v"] == 5
    remote.error = errors.PeerUnreachable("nobody there")
    cache.fetch()
    fetched(cache).close()
    cache.close()
    said = [record.message for record in caplog.records]
    assert said == ["the last fetch of variables ['v'] failed: nobody there"]
