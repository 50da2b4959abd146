"""What a parameter server measures of its contents."""

from functools import partial

from megalith.ps import resident_memory
from megalith.ps.store.store import Store
from megalith.runtime.metrics import Metrics
from megalith.schema import table_counts


def store_metrics(store: Store) -> Metrics:
    """Metrics with the figures of this store; calls and lookups are added to them."""
    metrics = Metrics()
    metrics.gauge("megalith_rows", "Embedding rows held.", lambda: store.rows)
    metrics.gauge(
        "megalith_resident_bytes", "Memory of the whole process.", resident_memory.resident_bytes
    )
    metrics.gauge(
        "megalith_bytes",
        "Memory of rows, index, variables and remembered pushes.",
        lambda: store.nbytes,
    )

    metrics.gauge(
        "megalith_push_memory_bytes",
        "Memory of which pushes were applied.",
        lambda: store.push_memory_bytes,
    )

    for name, help in table_counts.HELP.items():
        metrics.counter(f"megalith_rows_{name}_total", help, partial(store.count, name))

    metrics.counter(
        "megalith_variable_updates_nonfinite_total",
        "Gradients and summands left out because a variable or its state would have overflowed.",
        lambda: store.nonfinite_updates,
    )

    metrics.gauge("megalith_routing_epoch", "Newest routing map seen.", lambda: store.epoch)
    return metrics
