"""Scoring with a checkpoint: its rows and variables in this process, without a cluster.

    model = load_model(directory)
    model.check_fits(task)
    figures = task.evaluate(model.read)

`model.read` is the `Read` that `Task.evaluate` takes, and answers as a pull from a cluster that was
started from the checkpoint: an id without a row has zeros. All rows of the checkpoint are in memory
meanwhile, together with what their optimizers know.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from megalith.checkpoint.directory import increments
from megalith.checkpoint.format import MANIFEST
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    ShapeMismatch,
    UnknownTable,
    UnknownVariable,
)
from megalith.local.model import LocalModel
from megalith.wire.reports import RestoreReport
from megalith.worker.task import IdsByTable, RowsByTable, Task, Variables

logger = logging.getLogger(__name__)


class SavedModel:
    """A checkpoint with its increments, read only. Any number of threads may read.

    `restored` says which step it is of, and how many rows it has.
    """

    def __init__(self, model: LocalModel, restored: RestoreReport) -> None:
        self._model = model
        self._tables = {table.config.name: table for table in model.tables()}

        self._variables = {}
        for variable in model.variables():
            value = variable.read()
            value.setflags(write=False)
            self._variables[variable.config.name] = value

        self.restored = restored

    @property
    def step(self) -> int:
        """The global step at which it was saved, increments included."""
        return self.restored.step

    def read(self, ids: IdsByTable, variables: Sequence[str]) -> tuple[RowsByTable, Variables]:
        """The rows of these ids, by table, and the variables of these names."""
        for name in ids:
            self._table(name)

        rows, _ = self._model.read(ids, ())
        return rows, {name: self._variable(name) for name in variables}

    def check_fits(self, task: Task[Any]) -> None:
        """Raise if the checkpoint is not of this task with these options.

        UnknownTable and UnknownVariable name what it lacks, ShapeMismatch what has another shape.
        """
        for config in task.tables:
            wanted = sum(segment.dim for segment in config.segments)
            found = self._table(config.name).layout.dim
            if found != wanted:
                raise ShapeMismatch(
                    f"{self.restored.path}: rows of table {config.name} have {found} numbers, the "
                    f"task takes {wanted}: it was trained with other options"
                )

        for variable in task.variables:
            found_shape = self._variable(variable.name).shape
            wanted_shape = variable.initial.shape
            if found_shape != wanted_shape:
                raise ShapeMismatch(
                    f"{self.restored.path}: variable {variable.name} is {list(found_shape)}, the "
                    f"task takes {list(wanted_shape)}: it was trained with other options"
                )

    def _table(self, name: str) -> EmbeddingTable:
        if name not in self._tables:
            raise UnknownTable(
                f"{self.restored.path} has no table {name}, it has {sorted(self._tables)}: it is a "
                "checkpoint of another task, or of other features"
            )

        return self._tables[name]

    def _variable(self, name: str) -> NDArray[Any]:
        if name not in self._variables:
            raise UnknownVariable(
                f"{self.restored.path} has no variable {name}, it has {sorted(self._variables)}: "
                "it is a checkpoint of another task, or of another model"
            )

        return self._variables[name]


def load_model(directory: Path) -> SavedModel:
    """A checkpoint with its increments: all rows that a job would start from, or an error.

    CheckpointNotFound if it is removed while it is read. Increments that are removed meanwhile,
    because the next checkpoint has been saved, are no error: it is read again without them.
    """
    while True:
        before = _increments_of(directory)
        try:
            return _load(directory)
        except (CheckpointNotFound, CheckpointDamaged, FileNotFoundError) as error:
            if not (directory / MANIFEST).exists():
                raise CheckpointNotFound(
                    f"there is no complete checkpoint at {directory}, or no longer: {error}"
                ) from error

            is_any_gone = before - _increments_of(directory)
            if not is_any_gone:
                raise

            logger.info("the increments of %s were removed meanwhile: %s", directory, error)


def _increments_of(directory: Path) -> set[str]:
    folder = directory.parent / increments.FOLDER / directory.name
    return {path.name for path in folder.glob("[0-9]*")}


def _load(directory: Path) -> SavedModel:
    model = LocalModel()
    restored = model.restore(directory, over_budget=True)
    return SavedModel(model, restored)
