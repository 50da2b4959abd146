"""The training loop of one worker: pull, compute, push, and hold at the barrier between steps."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.client import Cluster, Pulled, VariableConfig
from megalith.wire.errors import MegalithError, OutcomeLost, OutcomeUnknown
from megalith.worker.config import OverlapSettings, RetrySettings
from megalith.worker.failover import RETRIABLE, Failover
from megalith.worker.gate import BarrierCallback, Gate
from megalith.worker.pipeline import Drawn, Pipeline, Stepped, share
from megalith.worker.progress import Progress
from megalith.worker.step_counter import StepCounter
from megalith.worker.sync import wait_for_others
from megalith.worker.task import Ids, Rows, Task, Variables
from megalith.worker.view import ClusterView, Phase, State

logger = logging.getLogger(__name__)

_NEAR_END = 8  # times all steps that can be under way at once: workers are not equally fast
_PUBLISH_S = (
    5.0  # much longer than a push takes, and short for workers that wait for the initialization
)


class Training:
    """Trains batches index, index + workers, index + 2 * workers, ... of a task, up to `max_steps` (0 = all)."""

    def __init__(
        self,
        task: Task[Any],
        cluster: Cluster,
        view: ClusterView,
        progress: Progress,
        index: int,
        announce: Callable[[], None],
        retries: RetrySettings,
        overlap: OverlapSettings,
        max_steps: int = 0,
    ) -> None:
        self._task, self._cluster, self._view, self._progress = task, cluster, view, progress
        self._index, self._announce, self._max_steps = index, announce, max_steps
        on_barrier: BarrierCallback | None = getattr(task, "on_barrier", None)
        self._gate = Gate(
            view,
            progress,
            announce,
            drain=self._drain,
            callbacks=(on_barrier,) if on_barrier else (),
        )
        self._failover = Failover(
            retries.retry_wait_s,
            retries.max_retries,
            epoch=lambda: view.state.epoch,
            pause=view.pause,
            on_failover=progress.failed_over,
        )
        self._chief_timeout_s = retries.chief_timeout_s
        self._retry_wait_s = retries.retry_wait_s
        self._overlap = overlap
        self._pipeline: Pipeline | None = None
        self._last_variables: Mapping[str, NDArray[Any]] = {}
        self._counter = StepCounter(index)
        self._near_end = 0
        self._publishing: threading.Thread | None = None  # of the chief's initialization

    def initialize(self, state: State) -> None:
        """Chief: make tables and variables exist on every ps of the state's epoch.

        What exists stays. A variable that went down with its ps starts again from the value this worker last read.
        """
        self._failover.run(partial(self._initialize, state))

    def _initialize(self, state: State) -> None:
        self._cluster.expect_epoch(
            state.epoch
        )  # what is made on servers of an older map is not made on these
        position = self._progress.snapshot().position
        last = self._last_variables
        variables = [begun_again(config, last.get(config.name)) for config in self._task.variables]
        self._cluster.create_tables(*self._task.tables)
        self._cluster.create_variables(*self._counter.variables(state, position), *variables)
        self._publish_soon(
            state, position
        )  # a counter that was restored from a checkpoint is behind
        self._progress.set(initialized_epoch=state.epoch)
        self._announce()
        logger.info("initialized epoch=%d step=%d", state.epoch, self._counter.step)

    def run(self, num_workers: int) -> None:
        """Train the share from where the controller says it stands, until its end or a stop."""
        if not self._gate.may_step():
            return
        total, position = self._share(num_workers), self._view.state.positions[self._index]
        self._progress.set(position=position, total_batches=total or 0, has_begun=True)
        logger.info("training position=%d of %s", position, "endless" if total is None else total)
        numbers = share(total, self._index, num_workers)
        settings = self._overlap
        self._near_end = _NEAR_END * num_workers * (settings.staleness + 1)
        pipeline = Pipeline(
            self._task,
            self._cluster,
            numbers,
            settings.staleness,
            settings.prefetch_batches,
            self._on_step,
        )
        pipeline.begin(position)
        self._pipeline = pipeline
        try:
            while self._goes_on(pipeline, numbers):
                self._failover.run(partial(pipeline.step, partial(self._taught, pipeline)))
        finally:
            pipeline.close()

    def _goes_on(self, pipeline: Pipeline, numbers: Callable[[int], int | None]) -> bool:
        """Whether there is a step to take; at the end of the share, once all pushes are answered."""
        if not self._gate.may_step():
            self._drain_pipeline(pipeline)
            return False
        self._cluster.expect_epoch(self._view.state.epoch)
        is_under_way = pipeline.is_begun_to > pipeline.position
        # Near the last step they do not overlap: all workers count together, and none should take steps too many.
        is_near_end = self._max_steps and self._step + self._near_end >= self._max_steps
        is_at_end = is_near_end or numbers(pipeline.is_begun_to) is None
        if is_under_way and is_at_end and not self._drain_pipeline(pipeline):
            return False
        return numbers(pipeline.is_begun_to) is not None and self._has_steps_left()

    def finish(self, num_workers: int) -> None:
        """After the share: the chief waits for the others and evaluates; then this worker is finished.

        Before it evaluates, it has the model saved: an evaluation that fails costs the evaluation alone.
        """
        if self._index == 0:
            if not wait_for_others(self._gate, self._view, num_workers, self._chief_timeout_s):
                return
            # Nobody trains any more: what a ps forgot of workers that were done is made good now.
            self._failover.run(
                lambda: self._publish(self._view.state, self._progress.snapshot().position)
            )
            self._progress.set(is_trained=True)
            self._announce()
            if not self._gate.wait_for(
                lambda state: state.is_saved or state.phase is Phase.FINISHED
            ):
                return
            self._failover.run(self._evaluate)
        self._progress.set(is_finished=True)
        self._announce()

    def _evaluate(self) -> None:
        results = self._task.evaluate(self._read)
        logger.info(
            "evaluated %s", " ".join(f"{name}={value:.5f}" for name, value in results.items())
        )
        self._progress.set(results=results)

    def _has_steps_left(self) -> bool:
        return not self._max_steps or self._step < self._max_steps

    @property
    def _step(self) -> int:
        """The newest global step that this worker has heard of."""
        return max(self._counter.step, self._view.state.global_step)

    def _share(self, num_workers: int) -> int | None:
        """Batches for this worker, which may be none; None = endless."""
        total = self._task.num_batches()
        return max(0, -(-(total - self._index) // num_workers)) if total else None

    def _taught(
        self, pipeline: Pipeline, pulled: Pulled, drawn: Drawn
    ) -> tuple[float, dict[str, Any]]:
        """The loss of the next batch to compute, and what to push."""
        self._last_variables = pulled.variables
        taught = self._task.gradients(drawn.batch, pulled.rows, pulled.variables)
        return taught.loss, {
            "gradients": {
                table: (drawn.ids[table], gradients) for table, gradients in taught.rows.items()
            },
            "variables": taught.variables,
            "at_least": self._counter.least(self._view.state, pipeline.is_begun_to + 1),
            "step": self._step,
        }

    def _on_step(self, step: Stepped) -> None:
        # Of a push with a lost part the counters are not known either; the next push raises them.
        global_step = (
            self._counter.answered(self._view.state, step.added) if step.added else self._step
        )
        self._progress.step_done(global_step, step.num_examples, step.loss)

    def _publish(self, state: State, position: int) -> None:
        """Let the counter on the ps say all that this worker knows, and report it."""
        raised = self._cluster.push(at_least=self._counter.least(state, position))
        self._progress.saw(self._counter.answered(state, raised))

    def _publish_soon(self, state: State, position: int) -> None:
        """Like `_publish`, but another write of this worker holds it up only for a moment.

        That write may be waiting for a ps that has to be initialized first, which is for this thread to do.
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

    def _publish_or_say(self, state: State, position: int) -> None:
        try:
            self._publish(state, position)
        except MegalithError as error:
            logger.warning("the counter lags, the next push will mend it: %s", error)

    def _drain(self) -> bool:
        """Before this worker is blocked at a barrier, it is known of all that it sent whether it is applied.

        False = the worker stops before that is known.
        """
        if self._pipeline is None:
            return True
        if not self._drain_pipeline(self._pipeline):
            return False
        if not self._counter.is_published:
            try:
                self._publish(self._view.state, self._pipeline.position)
            except RETRIABLE as error:
                logger.warning(
                    "the counter lags at the barrier, the next push will mend it: %s", error
                )
        return self._until_known(self._cluster.settle)

    def _drain_pipeline(self, pipeline: Pipeline) -> bool:
        """Until no push has an unknown outcome (True), or the worker stops (False)."""

        def drain() -> None:
            pipeline.drain()
            if pipeline.has_open_push:
                raise OutcomeUnknown("a push is still under way")

        return self._until_known(drain)

    def _until_known(self, ask: Callable[[], object]) -> bool:
        """Ask until it does not raise OutcomeUnknown (True), or the worker stops (False)."""
        while True:
            try:
                ask()
                return True
            except OutcomeLost:
                return True  # the client has counted it; there is nothing left to ask
            except OutcomeUnknown:
                if not self._view.pause(self._retry_wait_s):
                    return False
            except RETRIABLE as error:
                logger.debug("the last write was not applied: %s", error)
                return True

    def _read(self, ids: Ids, variables: Sequence[str]) -> tuple[Rows, Variables]:
        pulled = self._cluster.pull(ids, variables)
        return pulled.rows, pulled.variables


def begun_again(config: VariableConfig, last: NDArray[Any] | None) -> VariableConfig:
    """The variable with the value that was last read as its initial one, unless there is none or it is not finite."""
    if last is None:
        return config
    if not np.isfinite(last).all():
        logger.warning(
            "the value last read is not finite; if its ps lost it, the variable begins anew variable=%s",
            config.name,
        )
        return config
    return replace(config, initial=last)
