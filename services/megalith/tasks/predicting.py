"""Predictions of a model as a Parquet file: what the model says of each example, in their order."""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from megalith.errors import BadData, InvalidRequest, NonFiniteValue
from megalith.worker.task import Read

PREDICTION = "prediction"
LABEL = "label"


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a model says of some examples. `labels` is None if they have none.

    `fields` are columns of the input by name, as arrays of NumPy or of Arrow.
    """

    logits: NDArray[np.floating]
    labels: NDArray[np.floating] | None
    fields: Mapping[str, Any]


@runtime_checkable
class PredictingTask(Protocol):
    """A task that can predict."""

    def predictions(self, read: Read, fields: Sequence[str]) -> Iterator[Predicted]:
        """The examples to predict, in order, with at least these fields."""


def write_predictions(task: object, read: Read, path: Path, fields: Sequence[str] = ()) -> int:
    """Predict, and write a row for each example; how many there are.

    The columns are the chosen fields, the label if the input has one, and `prediction`, from 0 to
    1. The file is complete, or it does not exist.
    """
    if not isinstance(task, PredictingTask):
        raise InvalidRequest(
            f"{type(task).__name__} cannot predict: it has no method predictions(read, fields)"
        )

    taken = [name for name in fields if name in (PREDICTION, LABEL)]
    if taken:
        raise InvalidRequest(f"the field {taken[0]} would have the name of a column of the answer")

    part = path.with_name(f"{path.name}.part")
    try:
        num_rows = _write(task.predictions(read, fields), part, fields)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)

    return num_rows


def _write(predicted: Iterator[Predicted], path: Path, fields: Sequence[str]) -> int:
    writer = None
    num_rows = 0
    try:
        for each in predicted:
            table = _table(each, fields)
            if writer is None:
                with _naming(path):
                    writer = pa.parquet.ParquetWriter(path, table.schema)

            alike = _as_first(table, writer.schema)
            with _naming(path):
                writer.write_table(alike)

            num_rows += table.num_rows
    finally:
        if writer is not None:
            with _naming(path):
                writer.close()

    if writer is None:
        raise BadData("there are no examples to predict: the input is empty")

    return num_rows


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of a file that is written, with its name: Arrow gives none."""
    try:
        yield
    except OSError as error:
        number = error.errno or errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error


def _as_first(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the types of the first examples that were predicted."""
    if table.column_names != schema.names:
        raise BadData(
            "some examples have a label, and others have none: predict their files one by one "
            "(--data)"
        )

    try:
        return table.cast(schema)
    except pa.ArrowInvalid as error:
        raise BadData(f"a field is of another type than in the first examples: {error}") from error


def _table(predicted: Predicted, fields: Sequence[str]) -> pa.Table:
    logits = predicted.logits
    if not np.isfinite(logits).all():
        raise NonFiniteValue("predictions are NaN or infinite: the model is spoiled")

    missing = [name for name in fields if name not in predicted.fields]
    if missing:
        lacking = ", ".join(missing)
        known = ", ".join(predicted.fields) or "none"
        raise BadData(f"the input has no field {lacking}; its fields are {known}")

    columns = {name: predicted.fields[name] for name in fields}
    if predicted.labels is not None:
        columns[LABEL] = np.asarray(predicted.labels, np.float32)

    wide = np.asarray(logits, np.float64)
    probability = 0.5 + 0.5 * np.tanh(0.5 * wide)
    columns[PREDICTION] = probability.astype(np.float32)
    return pa.table(columns)
