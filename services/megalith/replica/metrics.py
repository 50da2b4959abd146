"""What a replica measures of itself."""

import time
from collections.abc import Callable

from prometheus_client import Histogram

from megalith.protos import replication_pb2 as pb
from megalith.replica.copies.cluster_copy import ClusterCopy
from megalith.replica.freshness import event_ages
from megalith.runtime.monitoring.metrics import Metrics

_SECONDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0, 60.0)
# Data has whole seconds, and may be days old
_EVENT_SECONDS = (1, 2, 3, 4, 5, 7.5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400)


class FreshnessMetrics:
    """How long changes take from the ps to here. Told of every version that was applied.

    The oldest change of a version is observed for each table, and the oldest time of the data where
    it has one. A version comes also when nothing was trained, so `version` goes on then: it shows
    that the way from the ps is open.
    """

    def __init__(self, metrics: Metrics, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._changes = Histogram(
            "megalith_replica_freshness_seconds",
            "From an update at the ps until it is visible here, by table; the oldest of a version.",
            ["table"],
            registry=metrics.registry,
            buckets=_SECONDS,
        )
        self._events = Histogram(
            "megalith_replica_event_seconds",
            "From the time of data until it is visible here, by table; the oldest of a version.",
            ["table"],
            registry=metrics.registry,
            buckets=_EVENT_SECONDS,
        )
        self._versions = Histogram(
            "megalith_replica_version_seconds",
            "From the moment that a version shows until it is visible here.",
            registry=metrics.registry,
            buckets=_SECONDS,
        )

    def applied(self, version: pb.VersionEnd) -> None:
        """Take the figures of a version."""
        sealed_s = version.sealed_us / 1e6
        self._versions.observe(sealed_s)
        for table, age_us in version.ages_us.items():
            changes = self._changes.labels(table)
            changes.observe(age_us / 1e6)

        for table, age_s in event_ages(version, self._wall_clock()).items():
            events = self._events.labels(table)
            events.observe(age_s)


def add_copy_metrics(metrics: Metrics, copy: ClusterCopy) -> None:
    """Figures of what the replica holds."""
    metrics.gauge("megalith_rows", "Embedding rows held.", lambda: copy.model.rows)
    metrics.gauge("megalith_bytes", "Memory of rows and index.", lambda: copy.model.nbytes)
    metrics.gauge(
        "megalith_replica_is_ready", "1 once it has had everything.", lambda: int(copy.is_ready)
    )
    metrics.gauge(
        "megalith_replica_staleness_seconds",
        "Since it had everything for the last time; -1 before the first.",
        lambda: copy.freshness().staleness_s if copy.is_ready else -1.0,
    )
    metrics.counter(
        "megalith_replica_rows_applied_total",
        "Rows set.",
        lambda: sum(each.rows_applied for each in copy.counts),
    )
    metrics.counter(
        "megalith_replica_rows_dropped_total",
        "Rows dropped.",
        lambda: sum(each.rows_dropped for each in copy.counts),
    )
    metrics.counter(
        "megalith_replica_snapshots_total",
        "Tables of which a ps sent all rows.",
        lambda: sum(each.snapshots for each in copy.counts),
    )
