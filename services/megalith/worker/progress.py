"""How far a worker is: counted step by step, read by reports."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from megalith.wire.reports import WorkerReport

_RATE_WINDOW_S = 5.0
_RECENT_STEPS = 20  # over which losses and metrics are averaged


class StepWatcher(Protocol):
    """Who is told of steps as they are done."""

    def step_done(self, seconds: float | None) -> None: ...
    def failed_over(self) -> None: ...


class Progress:
    """Counters of one worker. The lock guards all of them; a snapshot is consistent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = WorkerReport()
        self._recent: deque[tuple[float, int]] = deque()
        self._losses: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._metrics: dict[str, deque[float]] = {}
        self._last_step_at: float | None = None  # None after a hold
        self._watcher: StepWatcher | None = None
        self._pushes_unknown: Callable[[], int] = lambda: 0
        self._cursor_at: Callable[[int], bytes] = lambda position: b""

    def watched_by(self, watcher: StepWatcher) -> None:
        """Tell `watcher` of each step and failover from now on."""
        self._watcher = watcher

    def counts_unknown_by(self, pushes_unknown: Callable[[], int]) -> None:
        """Ask this at each snapshot for the number of pushes that nobody will know about.

        That is, whether they were applied.
        """
        self._pushes_unknown = pushes_unknown

    def set(self, **changes: Any) -> None:
        """Change fields of the snapshot by name."""
        with self._lock:
            self._now = replace(self._now, **changes)
            if self._now.is_blocked:
                self._last_step_at = None

    def begin(self, position: int, total_batches: int, cursor_at: Callable[[int], bytes]) -> None:
        """The share goes on at `position`; `cursor_at` says where the input is at a position."""
        with self._lock:
            self._cursor_at = cursor_at
            self._now = replace(
                self._now,
                position=position,
                total_batches=total_batches,
                cursor=cursor_at(position),
                has_begun=True,
            )

    def step_done(
        self,
        global_step: int,
        num_examples: int,
        loss: float,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """One batch of the share is trained.

        A metric that a step does not have, or that is NaN, leaves the mean of that metric as it is.
        """
        with self._lock:
            at = self._clock()
            self._recent.append((at, num_examples))
            self._losses.append(loss)
            self._take_metrics(metrics or {})
            earlier = self._now
            position = earlier.position + 1
            self._now = replace(
                earlier,
                global_step=max(earlier.global_step, global_step),
                position=position,
                cursor=self._cursor_at(position),
                examples=earlier.examples + num_examples,
                loss=_mean(self._losses),
                metrics={name: _mean(values) for name, values in self._metrics.items()},
            )

            before = self._last_step_at
            self._last_step_at = at

        if self._watcher is not None:
            seconds = None if before is None else at - before
            self._watcher.step_done(seconds)

    def _take_metrics(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if not math.isnan(value):
                values = self._metrics.setdefault(name, deque(maxlen=_RECENT_STEPS))
                values.append(value)

    def saw(self, global_step: int) -> None:
        """The global step is known to be at least that."""
        with self._lock:
            newest = max(self._now.global_step, global_step)
            self._now = replace(self._now, global_step=newest)

    def failed_over(self) -> None:
        """A step has to be tried again because servers were away."""
        with self._lock:
            self._now = replace(self._now, failovers=self._now.failovers + 1)

        if self._watcher is not None:
            self._watcher.failed_over()

    def snapshot(self) -> WorkerReport:
        pushes_unknown = self._pushes_unknown()
        with self._lock:
            rate = self._examples_per_s()
            return replace(self._now, examples_per_s=rate, pushes_unknown=pushes_unknown)

    def _examples_per_s(self) -> float:
        """Over the last few seconds; 0 while no step is taken on purpose."""
        now = self._clock()
        while self._recent and now - self._recent[0][0] > _RATE_WINDOW_S:
            self._recent.popleft()

        if not self._recent or self._now.is_blocked or self._now.is_finished:
            return 0.0

        span = now - self._recent[0][0]
        if span <= 0:
            return 0.0

        examples = sum(count for _, count in self._recent)
        return examples / span


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)
