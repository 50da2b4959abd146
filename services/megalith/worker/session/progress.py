"""How far a worker is: counted step by step, read by reports."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol

from megalith.wire.pieces import PieceProgress
from megalith.wire.reports import HookErrors, InputCounts, WorkerReport

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
        self._left_out: Callable[[], InputCounts] = InputCounts
        self._hook_errors: Callable[[], HookErrors] = HookErrors
        self._pieces: Callable[[], tuple[PieceProgress, ...]] = lambda: ()

    def watched_by(self, watcher: StepWatcher) -> None:
        """Tell `watcher` of each step and failover from now on."""
        self._watcher = watcher

    def counts_unknown_by(self, pushes_unknown: Callable[[], int]) -> None:
        """Ask this at each snapshot for the number of pushes that nobody will know about.

        That is, whether they were applied.
        """
        self._pushes_unknown = pushes_unknown

    def counts_left_out_by(self, left_out: Callable[[], InputCounts]) -> None:
        """Ask this at each snapshot for what the input has left out."""
        self._left_out = left_out

    def counts_hook_errors_by(self, hook_errors: Callable[[], HookErrors]) -> None:
        """Ask this at each snapshot for the hooks that raised."""
        self._hook_errors = hook_errors

    def takes_pieces_from(self, pieces: Callable[[], tuple[PieceProgress, ...]]) -> None:
        """Ask this at each snapshot for the pieces of the input that are held."""
        self._pieces = pieces

    def set(self, **changes: Any) -> None:
        """Change fields of the snapshot by name."""
        with self._lock:
            self._now = replace(self._now, **changes)
            if self._now.is_blocked:
                self._last_step_at = None

    def begin(self, position: int, total_batches: int, cursor: bytes) -> None:
        """The share goes on at `position`, where the input is at `cursor`."""
        with self._lock:
            self._now = replace(
                self._now,
                position=position,
                total_batches=total_batches,
                cursor=cursor,
                has_begun=True,
            )

    def step_done(
        self,
        global_step: int,
        num_examples: int,
        loss: float | None,
        metrics: Mapping[str, float] | None = None,
        *,
        cursor: bytes = b"",
        req_time_s: int = 0,
        missing_values: int = 0,
    ) -> None:
        """One batch of the share is trained, after which the input is at `cursor`.

        A loss of None is that of a batch that was left out: its examples are not trained.
        `req_time_s` is the Unix time of its data; with 0 that of an earlier batch stays. A metric
        that a step does not have, or that is NaN, leaves the mean of that metric as it is.
        `missing_values` are those that the examples lack.
        """
        with self._lock:
            at = self._clock()
            self._recent.append((at, num_examples))
            self._forget_old(at)
            if loss is not None:
                self._losses.append(loss)

            self._take_metrics(metrics or {})
            is_left_out = loss is None
            num_trained = 0 if is_left_out else num_examples
            earlier = self._now
            self._now = replace(
                earlier,
                global_step=max(earlier.global_step, global_step),
                position=earlier.position + 1,
                cursor=cursor,
                req_time_s=req_time_s or earlier.req_time_s,
                examples=earlier.examples + num_trained,
                skipped_batches=earlier.skipped_batches + is_left_out,
                missing_values=earlier.missing_values + missing_values,
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
        left_out = asdict(self._left_out())
        hook_errors = asdict(self._hook_errors())
        pieces = self._pieces()
        with self._lock:
            rate = self._examples_per_s()
            return replace(
                self._now,
                examples_per_s=rate,
                pushes_unknown=pushes_unknown,
                pieces=pieces,
                **left_out,
                **hook_errors,
            )

    def _examples_per_s(self) -> float:
        """Over the last few seconds; 0 while no step is taken on purpose."""
        now = self._clock()
        self._forget_old(now)
        if not self._recent or self._now.is_blocked or self._now.is_finished:
            return 0.0

        span = now - self._recent[0][0]
        if span <= 0:
            return 0.0

        examples = sum(count for _, count in self._recent)
        return examples / span

    def _forget_old(self, now: float) -> None:
        """Steps that the rate is no longer made of, however seldom it is asked for."""
        while self._recent and now - self._recent[0][0] > _RATE_WINDOW_S:
            self._recent.popleft()


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else 0.0
