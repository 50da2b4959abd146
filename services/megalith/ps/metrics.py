"""What a parameter server measures of its contents."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from megalith.ps import resident_memory
from megalith.ps.store.store import Store
from megalith.runtime.monitoring.metrics import Metrics
from megalith.schema import table_counts

_GAUGES = {
    "rows": ("megalith_rows", "Embedding rows held."),
    "bytes": ("megalith_table_bytes", "Memory of rows and index: what a memory budget limits."),
}


def store_metrics(store: Store) -> Metrics:
    """Metrics with the figures of this store; calls and lookups are added to them."""
    metrics = Metrics()
    metrics.registry.register(_TableFigures(store))
    metrics.gauge(
        "megalith_resident_bytes", "Memory of the whole process.", resident_memory.resident_bytes
    )
    metrics.gauge(
        "megalith_bytes",
        "Memory of rows, index, variables, blobs and remembered pushes.",
        lambda: store.nbytes,
    )

    metrics.gauge(
        "megalith_push_memory_bytes",
        "Memory of which pushes were applied.",
        lambda: store.push_memory_bytes,
    )

    metrics.gauge(
        "megalith_blob_bytes",
        "Memory of blobs: what --max-blob-bytes limits.",
        lambda: store.blob_bytes,
    )

    metrics.counter(
        "megalith_variable_updates_nonfinite_total",
        "Gradients and summands left out because a variable or its state would have overflowed.",
        lambda: store.nonfinite_updates,
    )

    metrics.gauge("megalith_routing_epoch", "Newest routing map seen.", lambda: store.epoch)
    return metrics


class _TableFigures(Collector):
    """The figures of each table, with its name as the label `table`.

    A sum over all tables would go down when one is dropped, and Prometheus would take that for a
    process that was started again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, (metric, help) in _GAUGES.items():
            families[name] = GaugeMetricFamily(metric, help, labels=["table"])

        for name, help in table_counts.HELP.items():
            metric = f"megalith_rows_{name}_total"
            families[name] = CounterMetricFamily(metric, help, labels=["table"])

        for table in self._store.tables():
            stats = table.stats()
            for name, family in families.items():
                family.add_metric([table.config.name], getattr(stats, name))

        yield from families.values()
