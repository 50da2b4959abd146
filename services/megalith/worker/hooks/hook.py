"""What a hook is, and what it is told."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from megalith.client import Cluster
from megalith.schema.table_counts import TableCounts

logger = logging.getLogger(__name__)

_LONGEST_REASON = 500  # characters: the outcome of the job has it


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step of this worker whose push was answered.

    `loss` is None if the batch was left out. `req_time_s` is the Unix time of the batch's data; 0
    if it has none.
    """

    global_step: int
    loss: float | None
    metrics: Mapping[str, float]
    num_examples: int
    req_time_s: int = 0


class RunningWorker:
    """The worker that a hook runs in, as hooks see it. Used by the thread that trains.

    `cluster` is the worker's connection to the job; None in `local_train`. `table_stats()` is what
    all tables hold, by name; in `local_train` too. Where each rank holds rows of its own, it is
    those of this rank.
    """

    def __init__(
        self,
        index: int,
        num_workers: int,
        *,
        cluster: Cluster | None,
        global_step: Callable[[], int],
        step_of_job: Callable[[], int],
        pause: Callable[[float], bool],
        table_stats: Callable[[], Mapping[str, TableCounts]] | None = None,
    ) -> None:
        """Without `table_stats` it is the cluster that is asked."""
        self.index = index
        self.num_workers = num_workers
        self.cluster = cluster
        self._global_step = global_step
        self._step_of_job = step_of_job
        self._pause = pause
        self._table_stats = table_stats
        self._stop_reason = ""

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @property
    def global_step(self) -> int:
        """The newest one that this worker has heard of, by its own steps."""
        return self._global_step()

    def step_of_job(self) -> int:
        """The global step as the controller knows it; a call, for workers that take no steps."""
        return self._step_of_job()

    def table_stats(self) -> Mapping[str, TableCounts]:
        """What all servers together, or this rank, hold of each table; a call that may fail."""
        if self._table_stats is not None:
            return self._table_stats()

        return {} if self.cluster is None else self.cluster.table_stats()

    def pause(self, seconds: float) -> bool:
        """Let that time go by (True), or until the worker is to end (False).

        While training is held, the worker counts as blocked, and that time is not counted.
        """
        return self._pause(seconds)

    def request_stop(self, reason: str) -> None:
        """End this worker's share after the steps that are under way; the job says why."""
        if not self._stop_reason:
            one_line = " ".join(reason.split()) or "a hook asked for it"
            self._stop_reason = one_line[:_LONGEST_REASON]
            logger.info("the share ends: %s", self._stop_reason)

    @property
    def is_stop_requested(self) -> bool:
        return bool(self._stop_reason)

    @property
    def stop_reason(self) -> str:
        """Why the share ends, in one line; empty if no hook has asked for it."""
        return self._stop_reason


class Hook:
    """Override what is needed. All are called by the thread that trains, between two steps.

    `begin` is called when the model is there and before any input is read. `before_step` comes
    before a step is computed, and `after_step` once its push was answered, which may be some steps
    later. `end` comes after the last push was answered, and before the last save; not if training
    fails, or the worker is told to stop.
    """

    def begin(self, worker: RunningWorker) -> None: ...

    def before_step(self, worker: RunningWorker) -> None: ...

    def after_step(self, worker: RunningWorker, done: StepDone) -> None: ...

    def end(self, worker: RunningWorker) -> None: ...


_current: ContextVar[RunningWorker | None] = ContextVar("current_worker", default=None)


def current_worker() -> RunningWorker | None:
    """The worker whose thread this is, from before `begin` to after `end`; None elsewhere."""
    return _current.get()


@contextmanager
def being(worker: RunningWorker) -> Iterator[None]:
    """Inside, it is the current worker of this thread."""
    token = _current.set(worker)
    try:
        yield
    finally:
        _current.reset(token)
