"""What the controller's /metrics page says of the job."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from megalith.controller.coordinator import Coordinator
from megalith.controller.members.directives import Phase
from megalith.controller.saving.records import SaveRecord
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.monitoring.monolith_metrics import (
    CLUSTER_TYPE,
    CONTAINERS_PREFIX,
    MonolithMetrics,
)
from megalith.wire.pieces import PieceCounts


class SaveMode(StrEnum):
    """What a save writes; the values are those of the metrics of Monolith."""

    FULL = "full"
    DENSE_ONLY = "dense_only"


@dataclass(slots=True)
class IncrementCounts:
    """What became of increments. One thread counts."""

    taken: int = 0
    failed: int = 0
    replaced: int = 0


class JobMetrics:
    """Gauges that ask the coordinator at each scrape; `watch` and `saved` are told what happens."""

    def __init__(
        self,
        metrics: Metrics,
        coordinator: Coordinator,
        model_name: str,
        num_left_ps: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._started_at = clock()
        self._ready_at = 0.0
        self._first_step = -1
        metrics.gauge(
            "megalith_global_step", "Steps taken by all workers.", lambda: coordinator.global_step
        )
        metrics.gauge(
            "megalith_barrier_placed",
            "1 while training is held.",
            lambda: coordinator.state().barrier.is_placed,
        )

        metrics.gauge(
            "megalith_members",
            "Live sessions.",
            lambda: sum(seat.is_connected for seat, _, _ in coordinator.seats()),
        )

        metrics.counter(
            "megalith_rows_lost_total",
            "Embedding rows that went down with a ps and came back from no checkpoint.",
            lambda: coordinator.losses()[0],
        )

        metrics.counter(
            "megalith_pushes_unknown_total",
            "Parts of the workers' pushes of which nobody will know whether they were applied.",
            lambda: coordinator.pushes_unknown,
        )

        self._add_pieces(metrics)
        named = MonolithMetrics(metrics)
        tags = {"model_name": model_name, "cluster_type": CLUSTER_TYPE}
        named.store(
            "num_left_ps",
            "Parameter servers that are waited for.",
            num_left_ps,
            prefix=CONTAINERS_PREFIX,
            **tags,
        )

        named.store(
            "job_waiting",
            "1 while parameter servers are waited for.",
            lambda: coordinator.state().phase is Phase.FORMING,
            prefix=CONTAINERS_PREFIX,
            **tags,
        )

        self._ready = named.timer(
            "container_ready_elapsed_time.all", "Seconds until the cluster was formed.", **tags
        )
        self._run_start = named.timer(
            "run_start_elapsed_time.all", "Seconds from formed to the first step.", **tags
        )
        self._saved = named.tagged_counter("save_checkpoint", "Checkpoints saved.", "mode")
        self._save_time = named.tagged_timer(
            "save_checkpoint_time", "Seconds that saves took.", "mode"
        )
        self._save_failed = named.tagged_counter(
            "save_checkpoint_failed", "Saves that failed.", "mode"
        )
        for mode in SaveMode:  # so that the page has them before the first save
            self._saved.labels(mode)
            self._save_time.labels(mode)
            self._save_failed.labels(mode)

        self.increments = IncrementCounts()
        metrics.counter(
            "megalith_increments_total", "Increments saved.", lambda: self.increments.taken
        )
        metrics.counter(
            "megalith_increments_failed_total",
            "Increments that failed; the next one has their changes.",
            lambda: self.increments.failed,
        )
        metrics.counter(
            "megalith_increments_replaced_total",
            "Full saves in place of an increment, because a ps could not tell what had changed.",
            lambda: self.increments.replaced,
        )

    def _add_pieces(self, metrics: Metrics) -> None:
        """Pieces of the input; all are 0 if it is not handed out."""
        none = PieceCounts(0, 0, 0, 0, False)

        def counts() -> PieceCounts:
            return self._coordinator.piece_counts() or none

        metrics.gauge(
            "megalith_pieces_done",
            "Pieces of the input that are trained to their end.",
            lambda: counts().done,
        )
        metrics.gauge("megalith_pieces_held", "Pieces that a worker has.", lambda: counts().held)
        metrics.gauge(
            "megalith_pieces_left",
            "Pieces that are known and that nobody has yet, or any more.",
            lambda: counts().left,
        )
        metrics.counter(
            "megalith_pieces_returned_total",
            "Pieces that were taken back from workers that were lost.",
            lambda: counts().returned,
        )

    def saved(self, record: SaveRecord, mode: SaveMode = SaveMode.FULL) -> None:
        if record.error:
            self._save_failed.labels(mode).inc()
            return

        self._saved.labels(mode).inc()
        self._save_time.labels(mode).observe(record.seconds)

    def watch(self) -> None:
        """Notice, once each, that the cluster is formed and that training has begun."""
        now = self._clock()
        phase = self._coordinator.state().phase
        if not self._ready_at and phase in (Phase.INITIALIZING, Phase.RUNNING):
            self._ready_at = now
            self._first_step = self._coordinator.global_step
            took_s = now - self._started_at
            self._ready.observe(took_s)

        if self._ready_at and 0 <= self._first_step < self._coordinator.global_step:
            self._first_step = -1
            self._run_start.observe(now - self._ready_at)
