"""The training loop of one worker: pull, compute, push, and hold at the barrier between steps."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from megalith.client import Cluster, Pulled
from megalith.collective.same_model import model_by_name
from megalith.errors import InvalidRequest, OutcomeLost, OutcomeUnknown
from megalith.wire.pieces import BOOK_PREFIX
from megalith.worker.batches import Batches, TrainingBatch
from megalith.worker.config import OverlapSettings
from megalith.worker.hooks.hook import RunningWorker, StepDone, being
from megalith.worker.hooks.hook_list import HookList
from megalith.worker.input import Input, Mode, PieceSource
from megalith.worker.lessons import gradients_of, row_gradients
from megalith.worker.session.progress import Progress
from megalith.worker.session.view import ClusterView, KnownState
from megalith.worker.steps.failover import RETRIABLE, Failover
from megalith.worker.steps.gate import BarrierCallback, Gate
from megalith.worker.steps.in_step import InStep, StepGivenUp, WorkerStopped
from megalith.worker.steps.pipeline import Lesson, Pipeline, StepResult
from megalith.worker.steps.step_counter import StepCounter, StepPublisher
from megalith.worker.summaries import StepSummaries
from megalith.worker.task import DYNAMIC, STATIC, Task, open_input

logger = logging.getLogger(__name__)

_INPUT_WAIT_S = 0.2  # without a batch: then earlier pushes are answered, and holds are looked at
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
        on_nan: str = "stop",
        summaries: StepSummaries | None = None,
        hooks: HookList | None = None,
        pieces: PieceSource | None = None,
        in_step: InStep | None = None,
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
        self._on_nan = on_nan
        self._summaries = summaries
        self._hooks = hooks or HookList()
        self._done: list[StepDone] = []  # of which the hooks have not been told
        self._pieces = pieces
        self._in_step = in_step
        self._shared: tuple[int, Lesson] | None = None  # what was pushed last, by its position
        self._pipeline: Pipeline | None = None
        self._near_end = 0
        self.last_variables: Mapping[str, NDArray[Any]] = {}  # as this worker last read them

        on_barrier: BarrierCallback | None = getattr(task, "on_barrier", None)
        callbacks = (on_barrier,) if on_barrier else ()
        self.gate = Gate(view, progress, announce, self._drain, callbacks)

    def run(self, num_workers: int) -> None:
        """Train the share from where the controller says it stands, until its end or a stop."""
        if self._in_step is None:
            self._run(num_workers)
            return

        try:
            self._in_step.begin(
                num_workers,
                model_by_name(self._task.tables, self._task.variables),
                self.gate.may_step,
                lambda: self._view.is_stopping,
            )
            self._run(num_workers)
        except WorkerStopped:  # all of them have heard it
            raise
        except BaseException as error:
            self._in_step.fail(error)
            raise
        else:
            self._in_step.close()

    def _run(self, num_workers: int) -> None:
        with self._waiting():
            may_begin = self.gate.may_step()

        if not may_begin:
            if self._in_step is not None:
                self._in_step.all_go_on(False)
            return

        worker = RunningWorker(
            self._index,
            num_workers,
            cluster=self._cluster,
            global_step=lambda: self._step,
            step_of_job=self._ask_step,
            pause=self.gate.pause,
        )
        with being(worker):
            self._hooks.begin(worker)
            self._train(worker)
            if not self._view.is_stopping:
                self._hooks.end(worker)

    def _train(self, worker: RunningWorker) -> None:
        num_workers = worker.num_workers
        input_ = self._open_input(num_workers)
        self._progress.counts_left_out_by(input_.left_out)
        state = self._view.state
        position = self._first_position(state)
        cursor = b""  # of pieces the controller says where they go on
        if self._pieces is None:
            cursor = start_cursor(input_, state, self._index, num_workers)
        remaining = input_.remaining(cursor)
        total = 0 if remaining is None else position + remaining
        self._progress.begin(position, total, cursor)
        logger.info(
            "training position=%d of %s cursor=%r",
            position,
            "an unknown number" if remaining is None else total,
            cursor,
        )

        settings = self._overlap
        self._near_end = _NEAR_END * num_workers * (settings.staleness + 1)
        batches = Batches(
            self._task,
            input_,
            cursor,
            position,
            settings.prefetch_batches,
            step=lambda: self._step,
        )
        pipeline = Pipeline(self._task, self._cluster, batches, settings.staleness, self._on_step)
        pipeline.begin(position)
        self._pipeline = pipeline

        try:
            while self._all_go_on(pipeline, batches, worker):
                self._take_step(pipeline)
                self._tell_hooks(worker)
            self._tell_hooks(worker)
        finally:
            batches.close()

    def _first_position(self, state: KnownState) -> int:
        """The batches that are trained here already, in this run.

        A share goes on where the last holder of this seat had reported: batches after that are
        trained again under their numbers, and count once. Pieces have no such numbers. Whoever
        trains what was not reported does that in batches of its own, so those that the last holder
        trained count beside them. The variables know of them.
        """
        reported = state.positions[self._index]
        if self._pieces is None or not reported:
            return reported

        self._failover.run(partial(self._publisher.publish, state, reported))
        return self._counter.position(state)

    def _take_step(self, pipeline: Pipeline) -> None:
        learn = partial(self._learn_in_step, pipeline)
        try:
            with suppress(StepGivenUp):
                self._failover.run(partial(pipeline.step, learn))
        finally:
            if self._in_step is not None:
                self._in_step.stop_waiting()

    def _tell_hooks(self, worker: RunningWorker) -> None:
        """Here, and not while a step is answered: an error of a hook is none of a server."""
        for done in self._done:
            self._hooks.after_step(worker, done)

        self._done.clear()

    def _open_input(self, num_workers: int) -> Input[Any]:
        sharding = STATIC if self._pieces is None else DYNAMIC
        input_ = open_input(
            self._task,
            Mode.TRAIN,
            self._index,
            num_workers,
            batch_size=self._batch_size,
            sharding=sharding,
        )
        if self._pieces is not None:
            input_.draw_from(self._pieces)

        return input_

    def _all_go_on(self, pipeline: Pipeline, batches: Batches, worker: RunningWorker) -> bool:
        goes_on = self._goes_on(pipeline, batches, worker)
        if self._in_step is None:
            return goes_on

        all_go_on = self._in_step.all_go_on(goes_on)
        is_expected = self._in_step.is_leaving or self._is_near_max_steps()
        if goes_on and not all_go_on and not is_expected:
            self._say_what_is_left()

        return all_go_on

    def _say_what_is_left(self) -> None:
        now = self._progress.snapshot()
        left = now.total_batches - now.position
        logger.warning(
            "another worker is at its end, so this one ends too; batches that it leaves: %s",
            left if now.total_batches else "some",
        )

    def _waiting(self) -> AbstractContextManager[None]:
        """Inside, workers in step do not expect this one."""
        return nullcontext() if self._in_step is None else self._in_step.waiting()

    def _goes_on(self, pipeline: Pipeline, batches: Batches, worker: RunningWorker) -> bool:
        """Whether there is a step to take; False at the end only once all pushes are answered."""
        with self._waiting():
            may_step = self.gate.may_step()

        if may_step:
            self._hooks.before_step(worker)
        if worker.is_stop_requested:
            self._progress.set(stop_reason=worker.stop_reason)
            self._drain_pipeline(pipeline)
            return False

        with self._waiting():
            return self._has_next(pipeline, batches)

    def _has_next(self, pipeline: Pipeline, batches: Batches) -> bool:
        is_known = False
        while not is_known:
            is_over = self._in_step is not None and self._in_step.is_over
            if is_over or not self.gate.may_step():
                self._drain_pipeline(pipeline)
                return False

            self._cluster.expect_epoch(self._view.state.epoch)

            # Near the last step they do not overlap: all workers count together, and none should
            # take steps too many.
            is_near_end = self._is_near_max_steps()
            is_known = batches.wait_for(pipeline.next_position, _INPUT_WAIT_S)
            has_batch = is_known and batches.has(pipeline.next_position)
            is_under_way = pipeline.next_position > pipeline.position
            must_drain = is_under_way and (is_near_end or not has_batch)
            if must_drain and not self._drain_pipeline(pipeline):
                return False
            if not self._has_steps_left():
                return False

        return batches.has(pipeline.next_position)

    def _is_near_max_steps(self) -> bool:
        return 0 < self._max_steps <= self._step + self._near_end

    def _has_steps_left(self) -> bool:
        return not self._max_steps or self._step < self._max_steps

    @property
    def _step(self) -> int:
        """The newest global step that this worker has heard of."""
        return max(self._counter.step, self._view.state.global_step)

    def _ask_step(self) -> int:
        try:
            return max(self._step, self._cluster.controller.training_status())
        except RETRIABLE as error:
            logger.info("the step of the job is not known now: %s", error)
            return self._step

    def _learn_in_step(self, pipeline: Pipeline, pulled: Pulled, batch: TrainingBatch) -> Lesson:
        """What this worker pushes, once all workers have computed their step.

        A step that is taken again, because its push was not applied, has what they agreed on then:
        the others wait at the next one.
        """
        if self._in_step is None:
            return self._learn(pipeline, pulled, batch)

        position = pipeline.next_position
        if self._shared is not None and self._shared[0] == position:
            return self._shared[1]

        lesson = self._learn(pipeline, pulled, batch)
        found = lesson.content.get("variable_gradients", {})
        means = self._in_step.share(found, self._task.variables)
        if means is None:
            raise StepGivenUp

        lesson = replace(lesson, content=lesson.content | {"variable_gradients": means})
        self._shared = (position, lesson)
        return lesson

    def _learn(self, pipeline: Pipeline, pulled: Pulled, batch: TrainingBatch) -> Lesson:
        """The loss of the next batch to compute, and what to push."""
        self.last_variables = pulled.variables
        computed = gradients_of(
            self._task,
            batch,
            pulled.rows,
            pulled.variables,
            step=self._step,
            on_nan=self._on_nan,
        )
        done = pipeline.next_position + 1
        content: dict[str, Any] = {
            "raise_variables": self._counter.least(self._view.state, done),
            "step": self._step,
        }
        if computed is None:
            return Lesson(None, {}, content)
        if self._summaries is not None:
            self._summaries.learned(self._step, computed)

        req_time_s = computed.req_time_s or batch.req_time_s
        content |= {
            "gradients": row_gradients(batch, computed),
            "variable_gradients": computed.variables,
            "req_time_s": req_time_s,
        }
        return Lesson(computed.loss, computed.metrics, content, req_time_s, computed.missing_values)

    def _on_step(self, step: StepResult) -> None:
        global_step = self._step
        # Of a push with a lost part the counters are not known either; the next push raises them.
        if step.raised:
            global_step = self._counter.answered(self._view.state, step.raised)

        lesson = step.lesson
        cursor = step.cursor
        if self._pieces is not None:
            self._pieces.trained(cursor)
            cursor = b""

        self._progress.step_done(
            global_step,
            step.num_examples,
            lesson.loss,
            lesson.metrics,
            cursor=cursor,
            req_time_s=lesson.req_time_s,
            missing_values=lesson.missing_values,
        )
        done = StepDone(
            global_step, lesson.loss, lesson.metrics, step.num_examples, lesson.req_time_s
        )
        self._done.append(done)

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


def start_cursor(input_: Input[Any], state: KnownState, index: int, num_workers: int) -> bytes:
    """Where a worker begins.

    That is where its predecessor in this run was. Without one it is where the checkpoint of this
    run says, and without a checkpoint the start of the input.
    """
    if state.cursors and state.cursors[index]:
        return state.cursors[index]
    if any(cursor.startswith(BOOK_PREFIX) for cursor in state.first_cursors):
        raise InvalidRequest(
            "the checkpoint was saved with --sharding dynamic, and its cursor is of pieces: go on "
            "with --sharding dynamic, or read the input from its start by --input-cursors false"
        )
    if any(state.first_cursors):
        return input_.resumed(state.first_cursors, index, num_workers)

    return b""
