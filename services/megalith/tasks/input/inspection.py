"""What is in data files, before anything is trained: types, different values, missing values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megalith.errors import BadData
from megalith.tasks.input.blocks import IndexedFile, read_block, schema_of
from megalith.tasks.input.columns import Label
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.schemas import differences

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
    _ends: pa.Array | None = field(default=None, repr=False)  # the least and the greatest value

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

        if pa.types.is_nested(values.type):
            return

        if not self.has_more:
            distinct = pc.unique(values)
            values = pc.drop_null(distinct)
            self._count(values)

        self._stretch(values)

    def _count(self, values: pa.Array) -> None:
        if self._values is not None:
            both = pa.concat_arrays([self._values, values])
            values = pc.unique(both)

        self.has_more = len(values) > _MOST_DISTINCT
        self._values = values[:_MOST_DISTINCT]

    def _stretch(self, values: pa.Array) -> None:
        """Least and greatest value of all rows, also once different values are not counted."""
        known = [] if self._ends is None else [self._ends]
        try:
            found = pc.min_max(pa.concat_arrays([*known, values]))
        except pa.ArrowNotImplementedError:  # Arrow knows no order of some types
            return

        if found["min"].is_valid:
            self._ends = pa.array([found["min"], found["max"]], values.type)
            self.least = _short(found["min"])
            self.greatest = _short(found["max"])


@dataclass(frozen=True, slots=True)
class Inspection:
    """`label_rate` is the mean of the label; None without one.

    `differences` are sentences about files whose columns are not those of the first one. Their
    `rows_left_out` are not read.
    """

    num_files: int
    num_rows: int
    rows_read: int
    columns: list[ColumnSummary]
    label_rate: float | None
    differences: list[str] = field(default_factory=list)
    rows_left_out: int = 0


def inspect(
    index: DataIndex, *, max_rows: int, label: Label | None, text_columns: Sequence[str] = ()
) -> Inspection:
    """Read all columns of the first `max_rows` rows; 0 = of all."""
    first = next(file for file in index.files if sum(file.rows))
    first_schema = schema_of(first, text_columns)
    schema = first_schema
    if label is not None and label.column not in schema.names:
        known = ", ".join(schema.names)
        raise BadData(f"there is no column {label.column}; there are {known}")

    different: list[str] = []
    rows_left_out = 0
    alike = []
    for file in index.files:
        lines = differences(file, first_schema, text_columns, first.path)
        if not lines:
            try:
                schema = _unified(schema, file, text_columns)
                alike.append(file)
            except pa.ArrowTypeError as error:  # of true and 1, which are both numbers
                lines = [f"{file.path}: {error}"]

        different += lines
        if lines:
            rows_left_out += sum(file.rows)

    columns = [ColumnSummary(each.name, str(each.type)) for each in schema]
    labels: list[NDArray[np.float32]] = []
    rows_read = 0

    for where, table in _tables(DataIndex(tuple(alike)), schema, max_rows):
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
        different,
        rows_left_out,
    )


def _unified(schema: pa.Schema, file: IndexedFile, text_columns: Sequence[str]) -> pa.Schema:
    """With types that hold the values of this file too: int32 and int64 are both int64."""
    if not sum(file.rows):
        return schema

    found = schema_of(file, text_columns)
    both = [_plain(schema), _plain(found)]
    return pa.unify_schemas(both, promote_options="permissive")


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without dictionaries: another file may have the values themselves."""
    fields = []
    for each in schema:
        is_encoded = pa.types.is_dictionary(each.type)
        fields.append(each.with_type(each.type.value_type) if is_encoded else each)

    return pa.schema(fields)


def _tables(index: DataIndex, schema: pa.Schema, max_rows: int) -> Iterator[tuple[str, pa.Table]]:
    left = max_rows or index.num_rows
    for block in index.blocks:
        if left <= 0:
            return

        table = read_block(block.file, block.number, schema).slice(0, left)
        try:
            table = table.select(schema.names).cast(schema)
        except pa.ArrowInvalid as error:
            raise BadData(f"{block.where}, with the types of all files: {error}") from error

        left -= table.num_rows
        yield block.where, table


def _short(scalar: pa.Scalar) -> str:
    try:
        value = scalar.as_py()
    except UnicodeDecodeError:  # text that is not UTF-8
        value = scalar.cast(pa.binary()).as_py()
    except ValueError:  # nanoseconds, of which Python's times have none
        value = scalar.cast(pa.string()).as_py()

    text = f"{value:g}" if isinstance(value, float) else str(value)
    if len(text) > 24:
        return f"{text[:21]}..."

    return text
