"""Hooks that say when a worker trains: not before a step, and only in some hours."""

import logging
import math
import random
import time
from collections.abc import Callable
from typing import Self

from megalith.runtime.day_window import DayWindow
from megalith.worker.hooks.hook import Hook, RunningWorker

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_SAY_EVERY_S = 60.0
_SPREAD_S = 600.0  # on top of its patience: not all that have waited begin at once


def stop_outside(window: DayWindow | None, worker: RunningWorker) -> bool:
    """Whether the hours in which the job may train are over; then the share ends."""
    if window is None or window.is_open:
        return False

    worker.request_stop(f"these are not the hours of --train-window {window}")
    return True


class SlowStart(Hook):
    """Begins when the job has come to a step: later workers join a model that has settled.

    Worker i waits for the step `slow_start_steps * ln(1 + i)`, so the chief waits for none. A job
    that has begun, and does not get that far, is joined after `max_s`, and up to ten minutes more
    at random.
    """

    def __init__(
        self,
        wait_until_step: int,
        max_s: float,
        window: DayWindow | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wait_until_step = wait_until_step
        self._max_s = max_s
        self._window = window
        self._clock = clock

    @classmethod
    def of_worker(
        cls, index: int, slow_start_steps: int, max_s: float, window: DayWindow | None
    ) -> Self:
        wait_until_step = int(slow_start_steps * math.log(1 + index))
        return cls(wait_until_step, max_s, window)

    def begin(self, worker: RunningWorker) -> None:
        if self._wait_until_step <= 0:
            return

        patience_s = self._max_s + random.uniform(0, _SPREAD_S)
        ends_at = math.inf
        say_at = self._clock()
        while True:
            if stop_outside(self._window, worker):
                return

            step = worker.step_of_job()
            now = self._clock()
            if step >= self._wait_until_step or now >= ends_at:
                logger.info("training begins at step=%d", step)
                return

            if step > 1 and ends_at == math.inf:
                ends_at = now + patience_s
            if now >= say_at:
                say_at = now + _SAY_EVERY_S
                logger.info("waiting for step %d, the job is at %d", self._wait_until_step, step)
            if not worker.pause(_LOOK_S):
                return


class TideStop(Hook):
    """Ends the share when the hours in which the job may train are over."""

    def __init__(self, window: DayWindow) -> None:
        self._window = window

    def begin(self, worker: RunningWorker) -> None:
        self.before_step(worker)

    def before_step(self, worker: RunningWorker) -> None:
        stop_outside(self._window, worker)
