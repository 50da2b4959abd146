"""Hooks that log how fast a worker trains, and how large the tables are."""

import logging
import time
from collections.abc import Callable

from megalith.errors import MegalithError
from megalith.worker.hooks.hook import Hook, RunningWorker, StepDone

logger = logging.getLogger(__name__)


class Throughput(Hook):
    """Logs every so often how many steps and examples a second this worker trains."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._since = 0.0
        self._steps = 0
        self._examples = 0

    def begin(self, worker: RunningWorker) -> None:
        self._since = self._clock()

    def after_step(self, worker: RunningWorker, done: StepDone) -> None:
        self._steps += 1
        self._examples += done.num_examples
        passed_s = self._clock() - self._since
        if passed_s < self._every_s:
            return

        logger.info(
            "step=%d steps_per_s=%.1f examples_per_s=%.0f",
            done.global_step,
            self._steps / passed_s,
            self._examples / passed_s,
        )
        self._since += passed_s
        self._steps = 0
        self._examples = 0


class TableSizes(Hook):
    """Logs every so often how many rows and bytes each table has."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._next_at = 0.0

    def begin(self, worker: RunningWorker) -> None:
        self._next_at = self._clock() + self._every_s

    def after_step(self, worker: RunningWorker, done: StepDone) -> None:
        now = self._clock()
        if now < self._next_at:
            return

        self._next_at = now + self._every_s
        try:
            stats = worker.table_stats()
        except MegalithError as error:  # a ps may be away
            logger.info("the sizes of tables are not known now: %s", error)
            return

        for table, counts in stats.items():
            logger.info("table=%s rows=%d bytes=%d", table, counts.rows, counts.bytes)
