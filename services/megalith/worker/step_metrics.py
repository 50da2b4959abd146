"""What a worker's /metrics page says of its steps, under the reference's names."""

import time
from collections.abc import Callable

from megalith.runtime.metrics import Metrics
from megalith.runtime.training_metrics import CLUSTER_TYPE, TrainingMetrics

_HEARTBEAT_S = 30.0


class StepMetrics:
    """Told of each step and failover. The chief also counts steps and gives the heart-beat of training.

    The reference gives failovers a text as value; here they are counted.
    """

    def __init__(
        self,
        metrics: Metrics,
        index: int,
        model_name: str,
        is_finished: Callable[[], bool],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._is_finished, self._wall_clock = is_finished, wall_clock
        self._beat_s, self._stopped_s = 0.0, 0.0
        named = TrainingMetrics(metrics)
        self._failovers = named.counter(
            "worker_failover_cnt",
            "Steps tried again because servers were away.",
            model_name=model_name,
            worker_index=str(index),
        )
        self._steps = self._step_time = None
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
        """A step is done, `seconds` after the one before; None when training was held between them."""
        if self._steps is not None:
            self._steps.inc()
        if self._step_time is not None and seconds is not None:
            self._step_time.observe(seconds)

    def _running_beat(self) -> float:
        """Moves every 30 s, as the reference's does, until training is over."""
        now = self._wall_clock()
        if not self._is_finished() and abs(now - self._beat_s) >= _HEARTBEAT_S:
            self._beat_s = now
        return self._beat_s

    def _stopped_beat(self) -> float:
        """When training was first seen to be over; 0 before."""
        if not self._stopped_s and self._is_finished():
            self._stopped_s = self._wall_clock()
        return self._stopped_s
