"""How far a worker is: counted step by step, read by reports."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

_RATE_WINDOW_S = 5.0
_LOSS_STEPS = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures of a WorkerReport; see coordination.proto."""

    global_step: int = 0
    position: int = 0
    total_batches: int = 0
    examples: int = 0
    examples_per_s: float = 0.0
    loss: float = 0.0
    is_blocked: bool = False
    is_finished: bool = False
    initialized_epoch: int = 0
    results: dict[str, float] = field(default_factory=dict)
    barrier_id: int = 0
    has_begun: bool = False
    failovers: int = 0
    pushes_unknown: int = 0
    is_trained: bool = False


class StepWatcher(Protocol):
    """Who is told of steps as they are done."""

    def step_done(self, seconds: float | None) -> None: ...
    def failed_over(self) -> None: ...


class Progress:
    """Counters of one worker. The lock guards all of them; a snapshot is consistent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = Snapshot()
        self._recent: deque[tuple[float, int]] = deque()
        self._losses: deque[float] = deque(maxlen=_LOSS_STEPS)
        self._last_step_at: float | None = None  # None after a hold
        self._watcher: StepWatcher | None = None
        self._pushes_unknown: Callable[[], int] = lambda: 0

    def watched_by(self, watcher: StepWatcher) -> None:
        """Tell `watcher` of each step and failover from now on."""
        self._watcher = watcher

    def counts_unknown_by(self, pushes_unknown: Callable[[], int]) -> None:
        """Ask this, at each snapshot, of how many pushes nobody will know whether they were applied."""
        self._pushes_unknown = pushes_unknown

    def set(self, **changes: Any) -> None:
        """Change fields of the snapshot by name."""
        with self._lock:
            self._now = replace(self._now, **changes)
            if self._now.is_blocked:
                self._last_step_at = None

    def step_done(self, global_step: int, num_examples: int, loss: float) -> None:
        """One batch of the share is trained."""
        with self._lock:
            now = self._now
            self._losses.append(loss)
            self._recent.append((self._clock(), num_examples))
            self._now = replace(
                now,
                global_step=max(now.global_step, global_step),
                position=now.position + 1,
                examples=now.examples + num_examples,
                loss=sum(self._losses) / len(self._losses),
            )
            at, before = self._recent[-1][0], self._last_step_at
            self._last_step_at = at
        if self._watcher is not None:
            self._watcher.step_done(None if before is None else at - before)

    def saw(self, global_step: int) -> None:
        """The global step is known to be at least that."""
        with self._lock:
            self._now = replace(self._now, global_step=max(self._now.global_step, global_step))

    def failed_over(self) -> None:
        """A step has to be tried again because servers were away."""
        with self._lock:
            self._now = replace(self._now, failovers=self._now.failovers + 1)
        if self._watcher is not None:
            self._watcher.failed_over()

    def snapshot(self) -> Snapshot:
        pushes_unknown = self._pushes_unknown()
        with self._lock:
            now = self._clock()
            while self._recent and now - self._recent[0][0] > _RATE_WINDOW_S:
                self._recent.popleft()
            span = now - self._recent[0][0] if self._recent else 0.0
            is_idle = span <= 0 or self._now.is_blocked or self._now.is_finished
            rate = 0.0 if is_idle else sum(count for _, count in self._recent) / span
            return replace(self._now, examples_per_s=rate, pushes_unknown=pushes_unknown)
