"""The training loop of one worker: pull, compute, push, and hold at the barrier between steps."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from megalith.client import Cluster, Pulled
from megalith.errors import OutcomeLost, OutcomeUnknown
from megalith.worker.batches import NumberOf, TrainingBatch
from megalith.worker.config import OverlapSettings
from megalith.worker.failover import RETRIABLE, Failover
from megalith.worker.gate import BarrierCallback, Gate
from megalith.worker.numbered_input import NumberedInput
from megalith.worker.pipeline import Lesson, Pipeline, StepResult
from megalith.worker.progress import Progress
from megalith.worker.step_counter import StepCounter, StepPublisher
from megalith.worker.task import Task
from megalith.worker.view import ClusterView

logger = logging.getLogger(__name__)

_NEAR_END = 8  # times all steps that can be under way at once: workers are not equally fast


class Training:
    """Trains a worker's share of a task, up to the global step `max_steps` (0 = all of it).

    The share of worker-1 of 3, for example, has the batches 1, 4, 7 and so on.
    """

    def __init__(
        self,
        task: Task[Any],
        cluster: Cluster,
        view: ClusterView,
        progress: Progress,
        index: int,
        announce: Callable[[], None],
        *,
        failover: Failover,
        retry_wait_s: float,
        overlap: OverlapSettings,
        counter: StepCounter,
        publisher: StepPublisher,
        max_steps: int = 0,
        batch_size: int = 0,
    ) -> None:
        self._task = task
        self._cluster = cluster
        self._view = view
        self._progress = progress
        self._index = index
        self._failover = failover
        self._retry_wait_s = retry_wait_s
        self._overlap = overlap
        self._counter = counter
        self._publisher = publisher
        self._max_steps = max_steps
        self._batch_size = batch_size
        self._pipeline: Pipeline | None = None
        self._near_end = 0
        self.last_variables: Mapping[str, NDArray[Any]] = {}  # as this worker last read them

        on_barrier: BarrierCallback | None = getattr(task, "on_barrier", None)
        callbacks = (on_barrier,) if on_barrier else ()
        self.gate = Gate(view, progress, announce, self._drain, callbacks)

    def run(self, num_workers: int) -> None:
        """Train the share from where the controller says it stands, until its end or a stop."""
        if not self.gate.may_step():
            return

        state = self._view.state
        position = state.positions[self._index]
        num_batches = self._task.num_batches()
        input_ = NumberedInput(num_batches, self._index, num_workers, self._batch_size)
        cursor = state.cursors[self._index] if state.cursors else b""
        input_.begin(cursor, state.first_cursors, position)
        self._progress.begin(position, input_.total or 0, input_.cursor_at)
        logger.info(
            "training position=%d of %s cursor=%r",
            position,
            "endless" if input_.total is None else input_.total,
            input_.cursor_at(position),
        )

        number_of = input_.number_of
        settings = self._overlap
        self._near_end = _NEAR_END * num_workers * (settings.staleness + 1)
        pipeline = Pipeline(
            self._task,
            self._cluster,
            number_of,
            settings.staleness,
            settings.prefetch_batches,
            self._on_step,
        )

        pipeline.begin(position)
        self._pipeline = pipeline

        try:
            while self._goes_on(pipeline, number_of):
                learn = partial(self._learn, pipeline)
                self._failover.run(partial(pipeline.step, learn))
        finally:
            pipeline.close()

    def _goes_on(self, pipeline: Pipeline, number_of: NumberOf) -> bool:
        """Whether there is a step to take; False at the end only once all pushes are answered."""
        if not self.gate.may_step():
            self._drain_pipeline(pipeline)
            return False

        self._cluster.expect_epoch(self._view.state.epoch)

        # Near the last step they do not overlap: all workers count together, and none should take
        # steps too many.
        is_near_end = self._max_steps and self._step + self._near_end >= self._max_steps
        is_at_end = is_near_end or number_of(pipeline.next_position) is None
        is_under_way = pipeline.next_position > pipeline.position
        if is_under_way and is_at_end and not self._drain_pipeline(pipeline):
            return False

        return number_of(pipeline.next_position) is not None and self._has_steps_left()

    def _has_steps_left(self) -> bool:
        return not self._max_steps or self._step < self._max_steps

    @property
    def _step(self) -> int:
        """The newest global step that this worker has heard of."""
        return max(self._counter.step, self._view.state.global_step)

    def _learn(self, pipeline: Pipeline, pulled: Pulled, batch: TrainingBatch) -> Lesson:
        """The loss of the next batch to compute, and what to push."""
        self.last_variables = pulled.variables
        computed = self._task.gradients(batch.batch, pulled.rows, pulled.variables)

        gradients = {}
        for table, rows in computed.rows.items():
            gradients[table] = (batch.ids[table], rows)

        done = pipeline.next_position + 1
        content = {
            "gradients": gradients,
            "variable_gradients": computed.variables,
            "raise_variables": self._counter.least(self._view.state, done),
            "step": self._step,
            "req_time_s": computed.req_time_s,
        }

        return Lesson(computed.loss, computed.metrics, content)

    def _on_step(self, step: StepResult) -> None:
        global_step = self._step
        # Of a push with a lost part the counters are not known either; the next push raises them.
        if step.raised:
            global_step = self._counter.answered(self._view.state, step.raised)

        self._progress.step_done(global_step, step.num_examples, step.loss, step.metrics)

    def _drain(self) -> bool:
        """Before this worker is blocked: find out of all that it sent whether it is applied.

        False = the worker stops before that is known.
        """
        if self._pipeline is None:
            return True
        if not self._drain_pipeline(self._pipeline):
            return False

        if not self._counter.is_published:
            try:
                self._publisher.publish(self._view.state, self._pipeline.position)
            except RETRIABLE as error:
                logger.warning(
                    "the counter lags at the barrier, the next push will mend it: %s", error
                )

        return self._until_known(self._cluster.wait_for_last_write)

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
