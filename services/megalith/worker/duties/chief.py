"""What worker-0, the chief, does for all: create tables and variables, and see to the end."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.client import Cluster, VariableConfig
from megalith.errors import MegalithError
from megalith.worker.session.progress import Progress
from megalith.worker.session.view import ClusterPhase, ClusterView, KnownState
from megalith.worker.steps.failover import Failover
from megalith.worker.steps.gate import Gate
from megalith.worker.steps.step_counter import StepCounter, StepPublisher
from megalith.worker.summaries import StepSummaries
from megalith.worker.task import IdsByTable, RowsByTable, Task, Variables

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 60.0
# Much longer than a push takes, and short for workers that wait for the initialization
_PUBLISH_S = 5.0


class Chief:
    """The chief's duties, beside its own share of the training.

    `keep_initialized` runs on a thread of its own, because a step of the training thread may be
    waiting for just that. `see_to_the_end` follows the share on the training thread, which passes
    its `gate`. `last_variables` returns the variables as this worker last read them.
    """

    def __init__(
        self,
        task: Task[Any],
        cluster: Cluster,
        view: ClusterView,
        progress: Progress,
        announce: Callable[[], None],
        *,
        failover: Failover,
        gate: Gate,
        counter: StepCounter,
        publisher: StepPublisher,
        last_variables: Callable[[], Mapping[str, NDArray[Any]]],
        timeout_s: float,
        on_initialized: Callable[[KnownState], None] = lambda state: None,
        allow_new_layout: bool = False,
        summaries: StepSummaries | None = None,
    ) -> None:
        self._allow_new_layout = allow_new_layout
        self._summaries = summaries
        self._task = task
        self._cluster = cluster
        self._view = view
        self._progress = progress
        self._announce = announce
        self._failover = failover
        self._gate = gate
        self._counter = counter
        self._publisher = publisher
        self._last_variables = last_variables
        self._timeout_s = timeout_s
        self._on_initialized = on_initialized
        self._publishing: threading.Thread | None = None

    def keep_initialized(self) -> None:
        """Until the worker stops: create what is missing whenever the cluster has a new epoch."""
        while self._view.wait_for(self._must_initialize):
            self.initialize(self._view.state)

    def _must_initialize(self, state: KnownState) -> bool:
        is_newer = state.epoch > self._progress.snapshot().initialized_epoch
        return state.phase is ClusterPhase.INITIALIZING and is_newer

    def initialize(self, state: KnownState) -> None:
        """Make tables and variables exist on every ps of the state's epoch.

        What exists stays. A variable that went down with its ps starts again from the value this
        worker last read.
        """
        self._failover.run(partial(self._initialize, state))

    def _initialize(self, state: KnownState) -> None:
        # What is made on servers of an older map is not made on these.
        self._cluster.expect_epoch(state.epoch)
        position = self._progress.snapshot().position
        last = self._last_variables()
        variables = [
            with_last_value(config, last.get(config.name)) for config in self._task.variables
        ]
        counters = self._counter.variables(state, position)
        self._cluster.create_tables(*self._task.tables, allow_new_layout=self._allow_new_layout)
        self._cluster.create_variables(*counters, *variables)

        # A counter that was restored from a checkpoint is behind.
        self._publish_soon(state, position)
        self._progress.set(initialized_epoch=state.epoch)
        self._announce()
        self._on_initialized(state)
        logger.info("initialized epoch=%d step=%d", state.epoch, self._counter.step)

    def _publish_soon(self, state: KnownState, position: int) -> None:
        """Publish the counter, but let another write of this worker hold that up only for a moment.

        That write may be waiting for a ps that has to be initialized first, which is for this
        thread to do.
        """
        self._counter.unpublish()
        if self._publishing is not None and self._publishing.is_alive():
            return  # it is held up still, and says nearly the same

        # A daemon, like the other threads of a worker: it must not hold up the exit.
        self._publishing = threading.Thread(
            target=self._publish_or_say, args=(state, position), name="publish", daemon=True
        )
        self._publishing.start()
        self._publishing.join(_PUBLISH_S)

        if self._publishing.is_alive():
            logger.warning(
                "the counter lags behind another write of this worker, the next push will mend it"
            )

    def _publish_or_say(self, state: KnownState, position: int) -> None:
        try:
            self._publisher.publish(state, position)
        except MegalithError as error:
            logger.warning("the counter lags, the next push will mend it: %s", error)

    def see_to_the_end(self, num_workers: int) -> bool:
        """Wait for the other workers, have the model saved, evaluate it; False if the worker stops.

        The save comes first: an evaluation that fails costs the evaluation alone.
        """
        if not wait_for_others(self._gate, self._view, num_workers, self._timeout_s):
            return False

        # Nobody trains any more: what a ps forgot of workers that were done is made good now.
        self._failover.run(self._publish)
        self._progress.set(is_trained=True)
        self._announce()
        if not self._gate.wait_for(_is_saved_or_over):
            return False

        self._failover.run(self._evaluate)
        return True

    def _publish(self) -> None:
        position = self._progress.snapshot().position
        self._publisher.publish(self._view.state, position)

    def _evaluate(self) -> None:
        results = self._task.evaluate(self._read)
        figures = []
        for name, value in results.items():
            figures.append(f"{name}={value:.5f}")

        logger.info("evaluated %s", " ".join(figures))
        self._progress.set(results=results)
        if self._summaries is not None:
            self._summaries.evaluated(self._progress.snapshot().global_step, results)

    def _read(self, ids: IdsByTable, variables: Sequence[str]) -> tuple[RowsByTable, Variables]:
        pulled = self._cluster.pull(ids, variables)
        return pulled.rows, pulled.variables


def _is_saved_or_over(state: KnownState) -> bool:
    return state.is_saved or state.phase is ClusterPhase.FINISHED


def wait_for_others(
    gate: Gate,
    view: ClusterView,
    num_workers: int,
    timeout_s: float,
    log_every_s: float = _LOG_EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Block until workers 1 and up are finished or `timeout_s` is over (True).

    False if this worker stops.
    """
    others = frozenset(range(1, num_workers))
    deadline = clock() + timeout_s

    def are_finished(state: KnownState) -> bool:
        return others <= state.finished_workers

    while True:
        left_s = max(0.0, deadline - clock())
        if gate.wait_for(are_finished, min(log_every_s, left_s)):
            break

        remaining = sorted(others - view.state.finished_workers)
        if view.is_stopping:
            return False

        if clock() >= deadline:
            logger.warning("Reach timeout seconds! Remaining worker count: %d.", len(remaining))
            return True

        logger.info("waiting for workers %s", remaining)

    if others:
        logger.info("All other workers had been finished.")

    return True


def with_last_value(config: VariableConfig, last: NDArray[Any] | None) -> VariableConfig:
    """The variable with `last`, the value that was last read, as its initial one.

    Unchanged if there is none, or if it is not finite.
    """
    if last is None:
        return config

    if not np.isfinite(last).all():
        logger.warning(
            "the value last read is not finite; "
            "if its ps lost it, the variable begins anew variable=%s",
            config.name,
        )
        return config

    return replace(config, initial=last)
