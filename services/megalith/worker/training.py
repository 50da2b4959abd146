"""The training loop of one worker: pull, compute, push, and hold at the barrier between steps."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.client import Cluster, VariableConfig
from megalith.worker.gate import Gate
from megalith.worker.progress import Progress
from megalith.worker.task import Ids, Rows, Task, Variables
from megalith.worker.view import ClusterView

logger = logging.getLogger(__name__)

GLOBAL_STEP = "global_step"  # an int64 variable on a ps: steps of all workers, also across restarts


class Training:
    """Trains batches index, index + workers, index + 2 * workers, ... of a task."""

    def __init__(
        self,
        task: Task[Any],
        cluster: Cluster,
        view: ClusterView,
        progress: Progress,
        index: int,
        announce: Callable[[], None],
    ) -> None:
        self._task, self._cluster, self._view, self._progress = task, cluster, view, progress
        self._index, self._announce = index, announce
        self._gate = Gate(view, progress, announce, drain=lambda: None)  # a step ends with its push answered
        self._names = [variable.name for variable in task.variables]
        self._last_variables: Mapping[str, NDArray[Any]] = {}
        self._last_step = 0

    def initialize(self, epoch: int, known_step: int) -> None:
        """Chief: make tables and variables exist on every ps of `epoch`.

        What exists stays. A variable that went down with its ps starts again from the value this worker last read.
        """
        step = np.array(max(known_step, self._last_step), np.int64)
        variables = [
            VariableConfig(config.name, self._last_variables.get(config.name, config.initial), config.optimizer)
            for config in self._task.variables
        ]
        self._cluster.create_tables(*self._task.tables)
        self._cluster.create_variables(VariableConfig(GLOBAL_STEP, step), *variables)
        # Restored from an older checkpoint, the counter would run through steps that were counted before.
        behind = step - self._cluster.pull(variables=[GLOBAL_STEP]).variables[GLOBAL_STEP]
        if behind > 0:
            self._cluster.push(add={GLOBAL_STEP: np.asarray(behind)})
        self._progress.set(initialized_epoch=epoch)
        self._announce()
        logger.info("initialized epoch=%d step=%d", epoch, step)

    def run(self, position: int, num_workers: int) -> None:
        """Train the share from batch `position` on, until its end or a stop."""
        total = self._share(num_workers)
        self._progress.set(position=position, total_batches=total or 0)
        logger.info("training position=%d of %s", position, "endless" if total is None else total)
        while (total is None or position < total) and self._gate.may_step():
            self._step(self._index + position * num_workers)
            position += 1

    def finish(self, num_workers: int) -> None:
        """After the share: the chief waits for the others and evaluates; then this worker is finished."""
        if self._index == 0:
            others = frozenset(range(1, num_workers))
            if not self._view.wait_for(lambda state: others <= state.finished_workers):
                return
            results = self._task.evaluate(self._read)
            logger.info("evaluated %s", " ".join(f"{name}={value:.5f}" for name, value in results.items()))
            self._progress.set(results=results)
        self._progress.set(is_finished=True)
        self._announce()

    def _share(self, num_workers: int) -> int | None:
        """Batches for this worker, which may be none; None = endless."""
        total = self._task.num_batches()
        return max(0, -(-(total - self._index) // num_workers)) if total else None

    def _step(self, number: int) -> None:
        batch = self._task.batch(number)
        ids = self._task.ids(batch)
        pulled = self._cluster.pull(ids, self._names)
        self._last_variables = pulled.variables
        taught = self._task.gradients(batch, pulled.rows, pulled.variables)
        added = self._cluster.push(
            {table: (ids[table], gradients) for table, gradients in taught.rows.items()},
            variables=taught.variables,
            add={GLOBAL_STEP: np.array(1, np.int64)},
            step=self._last_step,
        )
        self._last_step = int(added[GLOBAL_STEP])
        self._progress.step_done(self._last_step, self._task.num_examples(batch), taught.loss)

    def _read(self, ids: Ids, variables: Sequence[str]) -> tuple[Rows, Variables]:
        pulled = self._cluster.pull(ids, variables)
        return pulled.rows, pulled.variables
