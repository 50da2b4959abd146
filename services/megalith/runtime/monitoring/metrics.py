"""Prometheus metrics of one server."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from megalith.errors import InvalidSetting

_LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60)


class Metrics:
    """A registry with the RPC metrics that every server has.

    Services add their own gauges to it.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rpc_seconds = Histogram(
            "megalith_rpc_seconds",
            "Time to answer a call.",
            ["method"],
            registry=self.registry,
            buckets=_LATENCY_BUCKETS_S,
        )

        self.rpc_total = Counter(
            "megalith_rpc_total",
            "Calls answered, by outcome.",
            ["method", "code"],
            registry=self.registry,
        )

    def gauge(self, name: str, help: str, value: Any) -> None:
        """A gauge whose value is asked for at each scrape."""
        Gauge(name, help, registry=self.registry).set_function(value)

    def counter(self, name: str, help: str, value: Callable[[], float]) -> None:
        """A count since the process began, asked for at each scrape; the name ends in `_total`."""
        if not name.endswith("_total"):
            raise InvalidSetting(f"metric {name}: the name of a counter ends in _total")

        self.registry.register(_CountedElsewhere(name, help, value))


class _CountedElsewhere(Collector):
    """A counter whose value somebody else keeps and is asked for at each scrape."""

    def __init__(self, name: str, help: str, value: Callable[[], float]) -> None:
        self._name = name
        self._help = help
        self._value = value

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._help, value=self._value())
