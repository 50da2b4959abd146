"""Figures of how long changes, and their data, take to be visible."""

import prometheus_client
import pytest

from megalith.protos import replication_pb2 as pb
from megalith.replica.freshness import RecentFreshness
from megalith.replica.metrics import FreshnessMetrics
from megalith.runtime.monitoring.metrics import Metrics
from megalith.wire.reports import TableFreshness

NOW_S = 1_790_000_100


def version(ages_s=(), events_s=(), tables=("a", "b")):
    return pb.VersionEnd(
        sets=dict.fromkeys(tables, 1),
        ages_us={table: int(age_s * 1e6) for table, age_s in dict(ages_s).items()},
        oldest_events_s=dict(events_s),
    )


def recent_of(*versions):
    recent = RecentFreshness(lambda: NOW_S)
    for each in versions:
        recent.applied(each)
    return recent


def test_nothing_was_measured_at_first():
    recent = recent_of(version())
    assert recent.percentiles() == recent.event_percentiles() == (0.0, 0.0)
    assert recent.by_table() == ()


def test_the_oldest_change_counts_for_each_table_and_for_all():
    recent = recent_of(
        version({"a": 1.0, "b": 3.0}, {"a": NOW_S - 10, "b": NOW_S - 30}),
        version({"a": 2.0}, {"a": NOW_S - 20}),
    )
    assert recent.percentiles() == pytest.approx((2.5, 2.99))
    assert recent.event_percentiles() == pytest.approx((25.0, 29.9))
    of_a, of_b = recent.by_table()
    assert of_b == TableFreshness("b", 3.0, 3.0, 30.0, 30.0)
    found = (of_a.p50_s, of_a.p99_s, of_a.event_p50_s, of_a.event_p99_s)
    assert found == pytest.approx((1.5, 1.99, 15.0, 19.9))


def test_data_without_a_time_has_no_event_figures_and_data_of_the_future_is_0_seconds_old():
    recent = recent_of(version({"a": 1.0, "b": 1.0}, {"b": NOW_S + 5}))
    of_a, of_b = recent.by_table()
    assert of_a == TableFreshness("a", 1.0, 1.0)
    assert of_b == TableFreshness("b", 1.0, 1.0)
    assert recent.event_percentiles() == (0.0, 0.0)


def test_a_table_that_is_gone_is_forgotten():
    recent = recent_of(version({"a": 1.0, "b": 2.0}), version(tables=("b",)))
    assert [table.table for table in recent.by_table()] == ["b"]


def test_both_histograms_are_by_table():
    metrics = Metrics()
    freshness = FreshnessMetrics(metrics, lambda: NOW_S)
    freshness.applied(version({"a": 0.25, "b": 1.0}, {"a": NOW_S - 4, "b": NOW_S + 4}))
    freshness.applied(version({"a": 0.25}))
    page = prometheus_client.generate_latest(metrics.registry).decode()
    for line in (
        'megalith_replica_freshness_seconds_count{table="a"} 2.0',
        'megalith_replica_event_seconds_count{table="a"} 1.0',
        'megalith_replica_event_seconds_sum{table="a"} 4.0',
        'megalith_replica_event_seconds_sum{table="b"} 0.0',
    ):
        assert line in page
