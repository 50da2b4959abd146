"""Answers that a task computes of what a replica holds."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.client import Ids
from megalith.errors import (
    InvalidRequest,
    MegalithError,
    MessageTooLarge,
    NonFiniteValue,
    ShapeMismatch,
    UnknownLayout,
)
from megalith.kernels.dtypes import F32, I64
from megalith.replica.copies.cluster_copy import ClusterCopy
from megalith.replica.copies.exported_copy import ExportedCopy
from megalith.replica.copies.view import CopyFreshness, ModelView
from megalith.replica.predicting.served_task import (
    FeatureValues,
    LayoutArrays,
    ReadModel,
    ServedExamples,
    ServedTask,
)
from megalith.replica.predicting.task_file import TaskFile
from megalith.runtime.task_loading import raised_at

MAX_EXAMPLES = 65_536  # of a request: what the model computes on the way takes memory for each


@dataclass(frozen=True, slots=True)
class Predictions:
    """From 0 to 1, one for each example.

    `missing` are the features and dense columns of the task that the request left out.
    """

    values: F32
    missing: list[str]
    freshness: CopyFreshness


class Predictor:
    """Computes layouts and predictions. Any thread may call.

    `_turn` is held while a task computes: tasks answer one call at a time.
    """

    def __init__(self, copy: ClusterCopy | ExportedCopy, task_file: TaskFile) -> None:
        self._copy = copy
        self._task_file = task_file
        self._turn = threading.Lock()

    def layouts(
        self, features: Mapping[str, FeatureValues], names: Sequence[str], max_staleness_s: float
    ) -> tuple[LayoutArrays, CopyFreshness]:
        """The arrays of these layouts, of all if none is named."""
        _check_size(features)
        self._copy.freshness(max_staleness_s)  # refuses without a wait for the task
        task = self._task_file.task()
        with self._computing(task, max_staleness_s) as (view, read):
            arrays = task.served_layouts(features, read)

        for name in names:
            if name not in arrays:
                raise UnknownLayout(f"the task has no layout {name!r}; it has {sorted(arrays)}")

        return {name: arrays[name] for name in names or sorted(arrays)}, view.freshness

    def predict(self, examples: ServedExamples, max_staleness_s: float) -> Predictions:
        _check_size(examples.features)
        self._copy.freshness(max_staleness_s)  # refuses without a wait for the task
        task = self._task_file.task()
        with self._computing(task, max_staleness_s) as (view, read):
            logits = task.served_logits(examples, read)

        if not np.isfinite(logits).all():
            raise NonFiniteValue("predictions are NaN or infinite: the model is spoiled")

        wide = logits.astype(np.float64)
        values = (0.5 + 0.5 * np.tanh(0.5 * wide)).astype(np.float32)
        return Predictions(values, _missing(task, examples), view.freshness)

    @contextmanager
    def _computing(
        self, task: ServedTask, max_staleness_s: float
    ) -> Iterator[tuple[ModelView, ReadModel]]:
        """Inside, the task has its turn, and reads from one view.

        What its own code raises is an error of the request.
        """
        with self._turn:
            view = self._copy.view(max_staleness_s)
            try:
                yield view, _reader(view, task)
            except MegalithError:
                raise
            except Exception as error:
                raise InvalidRequest(
                    f"the task failed with these examples: {type(error).__name__}: {error}"
                    f"{raised_at(error)}"
                ) from error


def _reader(view: ModelView, task: ServedTask) -> ReadModel:
    """Reads from a view what the task takes, and nothing of another shape."""
    width_by_table = {}
    for table in task.tables:
        width_by_table[table.name] = sum(segment.dim for segment in table.segments)

    shape_by_name = {each.name: each.initial.shape for each in task.variables}

    def read(
        ids: Mapping[str, I64 | Ids], names: Sequence[str]
    ) -> tuple[dict[str, F32], dict[str, NDArray[Any]]]:
        rows = {}

        for table, wanted in ids.items():
            values = wanted.values if isinstance(wanted, Ids) else wanted
            rows[table] = view.lookup(table, values)
            _check_fits(f"rows of table {table}", rows[table].shape[1:], (width_by_table[table],))

        variables = {}
        for name in names:
            variables[name] = view.variable(name)
            _check_fits(f"variable {name}", variables[name].shape, shape_by_name[name])

        return rows, variables

    return read


def _check_fits(what: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise ShapeMismatch(
            f"{what}: this replica has {list(found)}, the task takes {list(wanted)}: the model was "
            "trained with other options than those of its task file"
        )


def _check_size(features: Mapping[str, FeatureValues]) -> None:
    for name, values in features.items():
        splits = values.row_splits
        count = len(values.values) if splits is None else splits.size - 1
        if count > MAX_EXAMPLES and not values.is_shared:
            raise MessageTooLarge(
                f"feature {name}: {count} examples in one request; ask for at most {MAX_EXAMPLES}"
            )


def _missing(task: ServedTask, examples: ServedExamples) -> list[str]:
    names = [name for name in task.served_features if name not in examples.features]
    if examples.dense is None:
        names += [name for name in task.served_dense if name not in examples.dense_columns]

    return names
