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

    def pull(self, *, variables):
        assert self.gate.wait(30)
        self.reads += 1
        if self.error:
            raise self.error
        return SimpleNamespace(variables={name: np.array([self.value]) for name in variables})


def fetched(cache):
    """The fetch that is under way, done."""
    cache._fetch.exception(10)
    return cache


def test_golden_g24_fetch_and_assign():
    remote = Remote(5.0)
    with VariableCache(remote, ["v"]) as cache:
        assert cache.values["v"] == 5
        remote.value += 2
        assert cache.values["v"] == 5
        cache.fetch()
        cache.assign()
        assert cache.values["v"] == 7


def test_golden_g24_hook_sees_a_change_within_two_runs():
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
    with pytest.raises(errors.DuplicateKeys, match="cached twice"):
        VariableCache(Remote(), ["v", "v"])
    with pytest.raises(errors.InvalidSetting, match="negative"):
        VariableCache(Remote(), ["v"], max_lag_steps=-1)


def test_close_ends_the_thread():
    cache = VariableCache(Remote(), ["v"])
    cache.fetch()
    cache.close()
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("variable-cache")
    ]


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
