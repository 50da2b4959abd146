"""What is in data files, before anything is trained: types, different values, missing values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megalith.errors import BadData
from megalith.tasks.input.blocks import read_block, schema_of
from megalith.tasks.input.columns import Label
from megalith.tasks.input.index import DataIndex

_MOST_DISTINCT = 1_000_000  # of one column: what is beyond is not counted


@dataclass(slots=True)
class ColumnSummary:
    """One column over all rows that were read.

    `distinct` counts different values; of lists those in the lists. Once there are more than a
    million, counting stops (`has_more`).
    """

    name: str
    type: str
    missing: int = 0
    has_more: bool = False
    least: str = ""
    greatest: str = ""
    _values: pa.Array | None = field(default=None, repr=False)

    @property
    def distinct(self) -> int:
        return 0 if self._values is None else len(self._values)

    def add(self, column: pa.ChunkedArray) -> None:
        self.missing += column.null_count

        values = column.combine_chunks()
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            values = values.flatten()

        if pa.types.is_floating(values.type):
            is_nan = pc.is_nan(values)
            self.missing += int(pc.sum(is_nan).as_py() or 0)

        if self.has_more or pa.types.is_nested(values.type):
            return

        distinct = pc.unique(values)
        self._count(pc.drop_null(distinct))

    def _count(self, values: pa.Array) -> None:
        if self._values is not None:
            values = pc.unique(pa.concat_arrays([self._values, values]))

        self.has_more = len(values) > _MOST_DISTINCT
        self._values = values[:_MOST_DISTINCT]

        if len(values):
            ends = pc.min_max(values).as_py()
            self.least = _short(ends["min"])
            self.greatest = _short(ends["max"])


@dataclass(frozen=True, slots=True)
class Inspection:
    """`label_rate` is the mean of the label; None without one."""

    num_files: int
    num_rows: int
    rows_read: int
    columns: list[ColumnSummary]
    label_rate: float | None


def inspect(
    index: DataIndex, *, max_rows: int, label: Label | None, text_columns: Sequence[str] = ()
) -> Inspection:
    """Read all columns of the first `max_rows` rows; 0 = of all."""
    schema = schema_of(index.files[0], text_columns)
    if label is not None and label.column not in schema.names:
        known = ", ".join(schema.names)
        raise BadData(f"there is no column {label.column}; there are {known}")

    columns = [ColumnSummary(each.name, str(each.type)) for each in schema]
    labels: list[NDArray[np.float32]] = []
    rows_read = 0

    for where, table in _tables(index, schema, max_rows):
        rows_read += table.num_rows
        for summary in columns:
            summary.add(table.column(summary.name))

        if label is not None:
            column = table.column(label.column)
            values = label.values(column, f"{where}, column {label.column}")
            labels.append(values)

    rate = None
    if labels:
        rate = float(np.concatenate(labels).mean())

    return Inspection(
        len(index.files),
        index.num_rows,
        rows_read,
        columns,
        rate,
    )


def _tables(index: DataIndex, schema: pa.Schema, max_rows: int) -> Iterator[tuple[str, pa.Table]]:
    left = max_rows or index.num_rows
    for block in index.blocks:
        if left <= 0:
            return

        table = read_block(block.file, block.number, schema).slice(0, left)
        left -= table.num_rows
        yield block.where, table


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if len(text) > 24:
        return f"{text[:21]}..."

    return text
