"""What a worker writes for TensorBoard: losses, figures, rates, norms and the sizes of tables."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from megalith.client import BackgroundCalls, Cluster, EventFile, Summary
from megalith.errors import InvalidSetting, MegalithError
from megalith.runtime.monitoring.metrics import Metrics
from megalith.worker.config import SummarySettings
from megalith.worker.session.progress import Progress
from megalith.worker.task import Gradients

logger = logging.getLogger(__name__)


class StepSummaries:
    """Writes every so many steps of a worker, to a folder of its own.

    A thread writes, so that a slow disk holds up no step: while it is still at the last summary,
    another one is left out. What cannot be written is left out too. Both are logged and counted.
    The chief also writes the sizes of the tables. Used by one thread.
    """

    def __init__(self, settings: SummarySettings, index: int, progress: Progress) -> None:
        self._every_steps = settings.summary_every_steps
        self._progress = progress
        self._steps = 0
        self._sizes_of: Cluster | None = None
        self._calls = BackgroundCalls()
        self.left_out = 0  # summaries that were not written
        try:
            self._events = EventFile(Path(settings.tensorboard) / f"worker-{index}")
        except InvalidSetting as error:
            raise InvalidSetting(f"--tensorboard={settings.tensorboard}: {error}") from error

    def write_sizes_of(self, cluster: Cluster) -> None:
        """From now on, write the sizes of its tables too."""
        self._sizes_of = cluster

    def count_in(self, metrics: Metrics) -> None:
        metrics.counter(
            "megalith_summaries_left_out_total",
            "Summaries for TensorBoard that were not written.",
            lambda: self.left_out,
        )

    def learned(self, step: int, computed: Gradients) -> None:
        """A step was computed; every so often it is written."""
        self._steps += 1
        if self._steps % self._every_steps:
            return

        now = self._progress.snapshot()
        scalars = {"loss": computed.loss, "examples_per_s": now.examples_per_s}
        scalars |= computed.metrics
        scalars |= _norms("rows", computed.rows)
        scalars |= _norms("variables", computed.variables)
        arrays = computed.summaries() if computed.summaries else ()
        self._write_soon(step, scalars, arrays)

    def evaluated(self, step: int, figures: Mapping[str, float]) -> None:
        """The model was evaluated. That is written in any case."""
        self._calls.drain()
        self._write(step, {f"evaluation/{name}": value for name, value in figures.items()}, ())

    def close(self) -> None:
        self._calls.close()
        self._events.close()
        if self.left_out:
            logger.warning("summaries left out=%d of %s", self.left_out, self._events.path.parent)

    def _write_soon(self, step: int, scalars: dict[str, float], arrays: Sequence[Summary]) -> None:
        if self._calls.is_idle:
            self._calls.make(self._write, step, scalars, arrays)
        else:
            self._leave_out(f"the summary of step {step}", "the last one is still being written")

    def _write(self, step: int, scalars: dict[str, float], arrays: Sequence[Summary]) -> None:
        sizes = self._sizes()
        try:
            self._events.add(step, scalars=scalars | sizes, summaries=arrays)
        except OSError as error:
            self._leave_out(f"the summary of step {step}", str(error))

    def _sizes(self) -> dict[str, float]:
        if self._sizes_of is None:
            return {}

        try:
            stats = self._sizes_of.table_stats()
        except MegalithError as error:  # a ps may be away
            logger.info("the sizes of tables are not in a summary: %s", error)
            return {}

        sizes: dict[str, float] = {}
        for table, counts in stats.items():
            sizes[f"rows/{table}"] = counts.rows
            sizes[f"bytes/{table}"] = counts.bytes

        return sizes

    def _leave_out(self, what: str, reason: str) -> None:
        self.left_out += 1
        level = logging.WARNING if self.left_out == 1 else logging.DEBUG
        logger.log(level, "left out: %s: %s", what, reason)


def _norms(kind: str, gradients: Mapping[str, ArrayLike]) -> dict[str, float]:
    return {
        f"gradient_norm/{kind}/{name}": float(np.linalg.norm(gradient))
        for name, gradient in gradients.items()
    }
