"""The training loop without servers: read, compute, apply, on one rank or on several in step."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megalith.checkpoint.storage.location import Location
from megalith.collective.ranks import Ranks
from megalith.local import saving, untouched
from megalith.local.model import LocalModel
from megalith.local.run import LocalRun
from megalith.local.wishes import Operator, Wishes
from megalith.schema import VariableConfig
from megalith.schema.table_counts import TableCounts
from megalith.worker.batches import Batches, TrainingBatch
from megalith.worker.hooks.hook import RunningWorker, StepDone, being
from megalith.worker.hooks.hook_list import HookList
from megalith.worker.input import Input, Mode
from megalith.worker.lessons import gradients_of, row_gradients
from megalith.worker.summaries import StepSummaries
from megalith.worker.task import Task, open_input

logger = logging.getLogger(__name__)

_NOT_KNOWN = -1  # how many batches an input still has
_INPUT_WAIT_S = 0.2  # without a batch: then stops, saves and other ranks are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How a task is trained; `local_train` says what each of them means."""

    max_steps: int = 0
    on_nan: str = "stop"
    prefetch_batches: int = 2
    batch_size: int = 0
    evaluates: bool = True
    input_name: str = ""


class TrainingLoop:
    """Trains what this rank reads, in step with the other ranks. Used by one thread.

    `operator` is made when the first step is known. `variables` are those of the task, with the
    values that new ones begin with.
    """

    def __init__(
        self,
        task: Task[Any],
        model: LocalModel,
        ranks: Ranks,
        settings: LoopSettings,
        folder: Path | None,
        *,
        hooks: HookList,
        operator: Callable[[int], Operator],
        variables: Sequence[VariableConfig],
        on_step: Callable[[int, float], None] | None = None,
        on_begun: Callable[[], None] | None = None,
        summaries: StepSummaries | None = None,
    ) -> None:
        self._task = task
        self._model = model
        self._ranks = ranks
        self._settings = settings
        self._folder = folder
        self._hooks = hooks
        self._make_operator = operator
        self._operator = Operator()
        self._variables = variables
        self._on_step = on_step
        self._on_begun = on_begun
        self._summaries = summaries
        self._names = [variable.name for variable in variables]
        self._cursor = b""  # at which the input goes on
        self._saved_step = -1  # of this run's newest checkpoint
        self._start: Location | None = None  # the checkpoint that has all of what it began with
        self._first_step = 0
        self._run = LocalRun(0, model.read, model)

    def run(self, start: Location | None) -> LocalRun:
        """Train from a checkpoint, or from nothing, to the end of the input or a stop."""
        run = self._run
        ranks = self._ranks
        input_ = open_input(
            self._task,
            Mode.TRAIN,
            ranks.index,
            ranks.count,
            batch_size=self._settings.batch_size,
        )
        self._begin(input_, start)
        if self._on_begun is not None:
            self._on_begun()

        worker = self._as_worker()
        prefetched = self._settings.prefetch_batches
        batches = Batches(self._task, input_, self._cursor, 0, prefetched, step=lambda: run.step)
        started = time.monotonic()
        with being(worker):
            try:
                self._hooks.begin(worker)
                self._train(worker, batches, input_)
                self._hooks.end(worker)
            finally:
                batches.close()

        run.seconds = time.monotonic() - started
        run.left_out = input_.left_out()
        run.stop_reason = worker.stop_reason
        if self._folder and self._saved_step != run.step:
            self._save_last(self._folder)
        if self._settings.evaluates:
            run.figures = self._model.evaluated(self._task.evaluate)
            if self._summaries is not None:
                self._summaries.evaluated(run.step, run.figures)

        return run

    def _begin(self, input_: Input[Any], checkpoint: Location | None) -> None:
        """Make what the task needs, and find where its input goes on."""
        if checkpoint is not None:
            restored = self._model.restore(checkpoint)
            self._run.step = restored.step

            saved = saving.saved_cursors(checkpoint, restored.increments)
            if any(saved):
                self._cursor = input_.resumed(saved, self._ranks.index, self._ranks.count)

        before = self._model.settings()
        self._model.create(self._task.tables, self._variables)
        if checkpoint is not None and untouched.is_taken_whole(
            self._model, before, checkpoint, restored
        ):
            self._start = checkpoint

        self._first_step = self._run.step
        self._operator = self._make_operator(self._run.step)

    def _train(self, worker: RunningWorker, batches: Batches, input_: Input[Any]) -> None:
        position = 0
        is_announced = False  # the next step, to the hooks
        while True:
            if self._ranks.count == 1 and self._folder and self._wants_save():
                self._save(self._folder)  # the input may keep the next batch back, or fail

            has_steps = self._has_steps_left()
            waits = has_steps and not batches.wait_for(position, _INPUT_WAIT_S)
            has_batch = has_steps and not waits and batches.has(position)
            if has_batch and not is_announced:
                self._hooks.before_step(worker)
                is_announced = True

            agreed = self._wishes(worker, has_batch, waits).agreed(self._ranks)
            if agreed.saves and self._folder:
                self._save(self._folder)
            if agreed.counts:
                self._operator.counted(self._model.rows_by_table())
            if agreed.stops or not agreed.goes_on:
                self._count_untrained(agreed, has_batch or waits, input_)
                return
            if agreed.waits:
                continue

            batch = batches.get(position)
            done = self._step(batch)
            position += 1
            batches.forget_before(position)
            self._cursor = batch.cursor
            self._operator.has_trained(done.req_time_s)
            self._hooks.after_step(worker, done)
            is_announced = False

    def _has_steps_left(self) -> bool:
        return self._run.step < (self._settings.max_steps or math.inf)

    def _wishes(self, worker: RunningWorker, has_batch: bool, waits: bool) -> Wishes:
        return Wishes(
            has_batch or waits,
            waits=waits,
            stops=worker.is_stop_requested or self._operator.wants_stop(),
            saves=self._wants_save(),
            counts=self._operator.wants_counts(),
        )

    def _wants_save(self) -> bool:
        step = self._run.step
        is_wanted = self._operator.wants_save(step)
        return is_wanted and self._saved_step != step

    def _save_last(self, folder: Path) -> None:
        """Save what was trained; if nothing was, say which checkpoint has everything."""
        mine = np.array([self._has_nothing_new(folder)], np.int64)
        is_saved = bool(self._ranks.gather(mine).all())
        if not is_saved:
            self._save(folder)
            return

        logger.info("nothing new since %s, which has everything: none is saved", self._start)
        self._run.checkpoint = self._start
        self._run.has_nothing_new = True

    def _has_nothing_new(self, folder: Path) -> bool:
        """Whether what this rank knows is in the checkpoint that the run began with."""
        ranks = self._ranks
        if self._start is None or self._run.step != self._first_step:
            return False  # all that changes the model is a step

        name = self._settings.input_name
        if not untouched.has_input(self._start, self._cursor, ranks.index, ranks.count, name):
            return False

        return not ranks.is_first or untouched.is_newest(folder, self._start)

    def _save(self, folder: Path) -> None:
        step = self._run.step
        self._run.checkpoint = saving.save(
            self._model,
            folder,
            step,
            self._cursor,
            self._ranks,
            self._settings.input_name,
        )
        self._saved_step = step
        self._operator.saved()

    def _count_untrained(self, agreed: Wishes, may_go_on: bool, input_: Input[Any]) -> None:
        """What other ranks leave because one of them is at the end of its input."""
        if self._ranks.count == 1 or agreed.stops or not self._has_steps_left():
            return

        left = input_.remaining(self._cursor) if may_go_on else 0
        mine = np.array([_NOT_KNOWN if left is None else left], np.int64)
        by_rank = self._ranks.gather(mine).reshape(-1)

        are_known = bool((by_rank >= 0).all())
        self._run.untrained_batches = int(by_rank.sum()) if are_known else None

        if self._ranks.is_first and by_rank.any():
            counts = [str(count) if count >= 0 else "some" for count in by_rank.tolist()]
            logger.warning(
                "a rank is at the end of its input, and others are not; batches left by rank: %s",
                ", ".join(counts),
            )

    def _as_worker(self) -> RunningWorker:
        """What hooks see: the worker of a job without servers."""

        def step() -> int:
            return self._run.step

        def pause(seconds: float) -> bool:
            time.sleep(seconds)
            return True

        def table_stats() -> dict[str, TableCounts]:
            return {table.config.name: table.stats() for table in self._model.tables()}

        return RunningWorker(
            self._ranks.index,
            self._ranks.count,
            cluster=None,
            global_step=step,
            step_of_job=step,
            pause=pause,
            table_stats=table_stats,
        )

    def _step(self, batch: TrainingBatch) -> StepDone:
        """Train a batch. One that is left out is pushed too, as nothing: others wait for it."""
        run = self._run
        loss = None
        metrics: Mapping[str, float] = {}
        req_time_s = batch.req_time_s
        gradients = {}
        variable_gradients: Mapping[str, Any] = {}

        rows, variables = self._model.read(batch.ids, self._names)

        computed = gradients_of(
            self._task, batch, rows, variables, step=run.step, on_nan=self._settings.on_nan
        )
        if computed is None:
            run.skipped_batches += 1
            run.last_losses.append(math.nan)
        else:
            if self._summaries is not None:
                self._summaries.learned(run.step, computed)

            gradients = row_gradients(batch, computed)
            variable_gradients = computed.variables
            loss = computed.loss
            metrics = computed.metrics
            req_time_s = computed.req_time_s or batch.req_time_s
            run.missing_values += computed.missing_values
            run.last_losses.append(loss)

        self._model.push(gradients, variable_gradients, req_time_s=req_time_s, step=run.step)

        num_examples = self._task.num_examples(batch.batch)
        run.step += 1
        if loss is not None:
            run.examples += num_examples

        if self._on_step is not None:
            self._on_step(run.step, run.last_losses[-1])

        return StepDone(run.step, loss, metrics, num_examples, req_time_s)
