import pytest

from megalith.ps.recent_calls import RecentCalls
from megalith.runtime.monitoring.metrics import Metrics


class Clock:
    now = 50.0

    def __call__(self):
        return self.now


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def clock():
    return Clock()


def test_calls_of_all_methods_are_counted_per_second_of_the_window(metrics, clock):
    calls = RecentCalls(metrics, clock)
    assert calls.figures() == (0.0, 0.0)
    for method in ("Pull", "Push"):
        for _ in range(99 + (method == "Pull")):
            metrics.rpc_seconds.labels(method).observe(0.0015)
    metrics.rpc_seconds.labels("Push").observe(0.03)
    clock.now += 2.0
    per_s, p99_s = calls.figures()
    assert per_s == pytest.approx(100.0)
    assert 0.001 < p99_s <= 0.002  # 199 of 200 calls are in that bucket


def test_the_slow_hundredth_shows(metrics, clock):
    calls = RecentCalls(metrics, clock)
    for seconds in [0.0015] * 90 + [0.3] * 10:
        metrics.rpc_seconds.labels("Pull").observe(seconds)
    clock.now += 1.0
    assert 0.2 < calls.figures()[1] <= 0.5


def test_a_server_that_falls_idle_shows_nothing_after_the_window(metrics, clock):
    calls = RecentCalls(metrics, clock)
    metrics.rpc_seconds.labels("Pull").observe(0.01)
    for _ in range(12):
        clock.now += 1.0
        figures = calls.figures()
    assert figures == (0.0, 0.0)


def test_a_call_longer_than_every_bucket_counts_as_the_longest(metrics, clock):
    calls = RecentCalls(metrics, clock)
    metrics.rpc_seconds.labels("Pull").observe(1000.0)
    clock.now += 1.0
    assert calls.figures()[1] == 60.0
