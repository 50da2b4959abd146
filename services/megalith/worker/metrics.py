"""What a worker's /metrics page says; some of it under the names that Monolith uses."""

import time
from collections.abc import Callable

from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.monitoring.monolith_metrics import CLUSTER_TYPE, MonolithMetrics
from megalith.worker.session.progress import Progress

_HEARTBEAT_S = 30.0


def worker_metrics(progress: Progress, index: int, model_name: str) -> Metrics:
    """The metrics of one worker, read off its progress; from now on it tells them of each step."""
    metrics = Metrics()
    metrics.counter(
        "megalith_examples_total", "Examples trained.", lambda: progress.snapshot().examples
    )
    metrics.gauge(
        "megalith_examples_per_second",
        "Recent rate.",
        lambda: progress.snapshot().examples_per_s,
    )

    metrics.counter(
        "megalith_batches_skipped_total",
        "Batches read and not trained, because their loss was NaN.",
        lambda: progress.snapshot().skipped_batches,
    )
    metrics.counter(
        "megalith_messages_skipped_total",
        "Messages of a topic that are gone or cannot be read, and were passed over.",
        lambda: progress.snapshot().skipped_messages,
    )
    metrics.counter(
        "megalith_files_late_total",
        "Files that came after their hour was closed, or went before they were read.",
        lambda: progress.snapshot().late_files,
    )
    metrics.gauge("megalith_loss", "Mean over recent steps.", lambda: progress.snapshot().loss)
    metrics.counter(
        "megalith_pushes_unknown_total",
        "Parts of pushes, each to one ps, of which nobody will know whether they were applied.",
        lambda: progress.snapshot().pushes_unknown,
    )

    def is_finished() -> bool:
        return progress.snapshot().is_finished

    progress.watched_by(StepMetrics(metrics, index, model_name, is_finished))
    return metrics


class StepMetrics:
    """Told of each step and failover.

    The chief also counts steps and gives the heart-beat of training. Monolith gives failovers a
    text as value; here they are counted.
    """

    def __init__(
        self,
        metrics: Metrics,
        index: int,
        model_name: str,
        is_finished: Callable[[], bool],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._is_finished = is_finished
        self._wall_clock = wall_clock
        self._beat_s = 0.0
        self._stopped_s = 0.0
        named = MonolithMetrics(metrics)
        self._failovers = named.counter(
            "worker_failover_cnt",
            "Steps tried again because servers were away.",
            model_name=model_name,
            worker_index=str(index),
        )

        self._steps = None
        self._step_time = None

        if index == 0:
            tags = {"model_name": model_name, "cluster_type": CLUSTER_TYPE}
            self._steps = named.counter("run_steps.all", "Steps of the chief.", **tags)
            self._step_time = named.timer(
                "run_steps_elapsed_time.all", "Seconds per step of the chief.", **tags
            )
            beat = named.tagged_store(
                "training_heart_beat", "Unix time at which training ran, or stopped.", "type"
            )
            beat.labels("running").set_function(self._running_beat)
            beat.labels("stopped").set_function(self._stopped_beat)

    def failed_over(self) -> None:
        self._failovers.inc()

    def step_done(self, seconds: float | None) -> None:
        """A step is done, `seconds` after the one before.

        None when training was held between them.
        """
        if self._steps is not None:
            self._steps.inc()
        if self._step_time is not None and seconds is not None:
            self._step_time.observe(seconds)

    def _running_beat(self) -> float:
        """Moves every 30 s, as Monolith's does, until training is over."""
        now = self._wall_clock()
        if not self._is_finished() and abs(now - self._beat_s) >= _HEARTBEAT_S:
            self._beat_s = now

        return self._beat_s

    def _stopped_beat(self) -> float:
        """When training was first seen to be over; 0 before."""
        if not self._stopped_s and self._is_finished():
            self._stopped_s = self._wall_clock()

        return self._stopped_s
