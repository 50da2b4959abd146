"""The metrics that Monolith's training emits, under its names, on a Prometheus page.

A name's dots become underscores after the prefix: `run_steps.all` is
`monolith_training_run_steps_all_total`. Kinds map as store -> gauge, counter -> counter (with
Prometheus' `_total`), timer -> summary (`_sum` and `_count`). `embedding_lookup` is measured on the
ps, without the way there. `lookup_fid_hit_rate` and `export_models.latest_version` are not built.
"""

import os
from collections.abc import Callable, Mapping

from prometheus_client import Counter, Gauge, Summary

from megalith.runtime.monitoring.metrics import Metrics

PREFIX_VARIABLE = "MONOLITH_METRIC_PREFIX"
DEFAULT_PREFIX = "monolith.training"
CONTAINERS_PREFIX = "monolith.containers"
CLUSTER_TYPE = "stable"  # the only one here; the tag is part of the contract


class MonolithMetrics:
    """Makes metrics with tags that are known when they are made."""

    def __init__(self, metrics: Metrics, environ: Mapping[str, str] = os.environ) -> None:
        self._registry = metrics.registry
        self._prefix = environ.get(PREFIX_VARIABLE) or DEFAULT_PREFIX

    def store(
        self,
        name: str,
        help: str,
        value: Callable[[], float] | None = None,
        *,
        prefix: str = "",
        **tags: str,
    ) -> Gauge:
        """A gauge; with `value` it is asked for at each scrape."""
        full_name = self._name(name, prefix)
        gauge = Gauge(full_name, help, list(tags), registry=self._registry)
        child = gauge.labels(**tags) if tags else gauge

        if value is not None:
            child.set_function(value)

        return child

    def tagged_store(self, name: str, help: str, *tags: str) -> Gauge:
        """A gauge whose values are set by tag."""
        return Gauge(self._name(name), help, tags, registry=self._registry)

    def counter(self, name: str, help: str, **tags: str) -> Counter:
        full_name = self._name(name)
        counter = Counter(full_name, help, list(tags), registry=self._registry)
        if not tags:
            return counter

        return counter.labels(**tags)

    def timer(self, name: str, help: str, **tags: str) -> Summary:
        full_name = self._name(name)
        summary = Summary(full_name, help, list(tags), registry=self._registry)
        if not tags:
            return summary

        return summary.labels(**tags)

    def tagged_counter(self, name: str, help: str, *tags: str) -> Counter:
        """A count for each value of its tags."""
        return Counter(self._name(name), help, tags, registry=self._registry)

    def tagged_timer(self, name: str, help: str, *tags: str) -> Summary:
        """A timer for each value of its tags."""
        return Summary(self._name(name), help, tags, registry=self._registry)

    def _name(self, name: str, prefix: str = "") -> str:
        full_name = f"{prefix or self._prefix}.{name}"
        return full_name.replace(".", "_").replace("-", "_")
