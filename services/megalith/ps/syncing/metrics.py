"""What parameter sync measures: Monolith's figures, and how far behind each target is."""

from prometheus_client import Counter, Gauge

from megalith.protos import parameter_sync_pb2 as pb
from megalith.ps.syncing.request import SyncRequest
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.monitoring.monolith_metrics import MonolithMetrics

_TAGS = ("model_name", "target", "status")


class SyncMetrics:
    """Told of every call, and of every target after its turn."""

    def __init__(self, metrics: Metrics) -> None:
        monolith = MonolithMetrics(metrics)
        self._latency = monolith.tagged_timer(
            "parameter_sync_latency", "Milliseconds of each call, by target and outcome.", *_TAGS
        )
        self._ids = monolith.tagged_counter(
            "parameter_sync_fid_count", "Rows in calls, by target and outcome.", *_TAGS
        )
        self._bytes = monolith.tagged_counter(
            "parameter_sync_byte_size", "Bytes in calls, by target and outcome.", *_TAGS
        )
        self._staleness = Gauge(
            "megalith_sync_staleness_seconds",
            "Since the target had everything, after its last turn or while this ps may not push; "
            "-1 = it never had.",
            ["target"],
            registry=metrics.registry,
        )
        self._full_pushes = Counter(
            "megalith_sync_full_pushes_total",
            "Tables of which a target was sent all rows.",
            ["target"],
            registry=metrics.registry,
        )
        self._left_out = Gauge(
            "megalith_sync_tables_left_out",
            "Tables that are not synced, because their touched_capacity is 0.",
            registry=metrics.registry,
        )

    def called(self, part: SyncRequest, response: pb.PushResponse, seconds: float) -> None:
        """One call was answered, or failed."""
        status = "KO" if response.status_code else "OK"
        tags = (part.model_name, response.target, status)
        latency = self._latency.labels(*tags)
        ids = self._ids.labels(*tags)
        num_bytes = self._bytes.labels(*tags)

        latency.observe(seconds * 1000)
        ids.inc(part.rows)
        num_bytes.inc(part.num_bytes)

    def had_turn(self, target: str, staleness_s: float, full_pushes: int) -> None:
        """A target was sent what it lacks, was tried, or has to wait."""
        staleness = self._staleness.labels(target)
        staleness.set(staleness_s)

        pushes = self._full_pushes.labels(target)
        pushes.inc(full_pushes)

    def forget(self, target: str) -> None:
        """It is not in the list any more."""
        self._staleness.remove(target)
        self._full_pushes.remove(target)

    def leave_out(self, tables: int) -> None:
        self._left_out.set(tables)
