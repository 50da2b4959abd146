"""Examples in columns, as a model takes them: those of a block, and any of them as a batch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.client import Ragged
from megalith.tasks.input.columns import DenseColumn, IdColumn, Label, TimeColumn, as_groups
from megalith.tasks.input.splits import splits_of

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DataColumns:
    """What is read of a data set."""

    label: Label
    ids: tuple[IdColumn, ...]
    dense: tuple[DenseColumn, ...] = ()
    time: TimeColumn | None = None
    groups: tuple[str, ...] = ()  # columns by whose values an evaluation is divided

    @property
    def names(self) -> list[str]:
        """Each column once."""
        names = [self.label.column]
        names += [column.column for column in self.ids]
        names += [column.column for column in self.dense]

        if self.time is not None:
            names.append(self.time.column)

        return list(dict.fromkeys([*names, *self.groups]))

    @property
    def inputs(self) -> list[str]:
        """What a model sees: the columns of ids and of numbers, each once."""
        names = [column.column for column in self.ids]
        names += [column.column for column in self.dense]
        return list(dict.fromkeys(names))

    @property
    def numbers(self) -> list[str]:
        """The columns that are numbers, and no ids."""
        return [self.label.column, *(column.column for column in self.dense)]


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples in columns. `dense` holds NaN where a value is missing.

    `missing` is how many values an example lacks, of ids and of dense columns. `times` are Unix
    seconds. `groups` are the values of the columns by which an evaluation is divided, as text.
    `missing_by_column` has the columns of a whole block that lack values, and how many; it is
    empty for some rows of a block, and for several blocks.
    """

    labels: F32
    ids: dict[str, Ragged]
    dense: F32
    times: I64 | None
    missing: I64
    groups: dict[str, NDArray[np.object_]] = field(default_factory=dict)
    missing_by_column: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.labels.size

    @property
    def newest_s(self) -> int:
        """The newest time; 0 without times."""
        return 0 if self.times is None else int(self.times.max(initial=0))


def examples_of(table: pa.Table, columns: DataColumns, where: str) -> Examples:
    """A block as examples; `where` names it in errors."""
    num_rows = table.num_rows
    missing = np.zeros(num_rows, np.int64)
    missing_by_column: Counter[str] = Counter()

    ids = {}
    for column in columns.ids:
        name = column.column
        values = table.column(name)

        ids[name], lacking = column.ids(values, f"{where}, column {name}")
        missing += lacking
        missing_by_column[name] += int(lacking.sum())

    dense = dense_of(table, columns, where)
    is_unknown = np.isnan(dense)
    missing += is_unknown.sum(axis=1)
    for number, dense_column in enumerate(columns.dense):
        missing_by_column[dense_column.column] += int(is_unknown[:, number].sum())

    times = None
    if columns.time is not None:
        name = columns.time.column
        values = table.column(name)

        times = columns.time.values(values, f"{where}, column {name}")

    name = columns.label.column
    values = table.column(name)
    labels = columns.label.values(values, f"{where}, column {name}")

    groups = {}
    for name in columns.groups:
        values = table.column(name)
        groups[name] = as_groups(values, f"{where}, column {name}")

    lacking_columns = {name: count for name, count in missing_by_column.items() if count}
    return Examples(labels, ids, dense, times, missing, groups, lacking_columns)


def dense_of(table: pa.Table, columns: DataColumns, where: str) -> F32:
    """The dense columns of a block, which may have no others; NaN where a value is missing."""
    dense = np.empty((table.num_rows, len(columns.dense)), np.float32)
    for number, column in enumerate(columns.dense):
        name = column.column
        values = table.column(name)
        dense[:, number] = column.values(values, f"{where}, column {name}")

    return dense


def check_values(table: pa.Table, columns: DataColumns, where: str) -> None:
    """BadData if these rows cannot be examples. No ids are made, so it costs little."""
    numbers: list[DenseColumn | Label | TimeColumn] = [*columns.dense, columns.label]
    if columns.time is not None:
        numbers.append(columns.time)

    for column in numbers:
        values = table.column(column.column)
        column.values(values, f"{where}, column {column.column}")

    for ids in columns.ids:
        values = table.column(ids.column)
        kind = values.type
        value_type = kind.value_type if pa.types.is_list(kind) else kind

        if pa.types.is_floating(value_type):  # which have to be whole
            ids.ids(values, f"{where}, column {ids.column}")


def taken(examples: Examples, rows: I64) -> Examples:
    """These rows, in this order."""
    ids = {}
    for name, lists in examples.ids.items():
        ids[name] = _taken_lists(lists, rows)

    groups = {}
    for name, values in examples.groups.items():
        groups[name] = values[rows]

    times = None if examples.times is None else examples.times[rows]
    return Examples(
        labels=examples.labels[rows],
        ids=ids,
        dense=examples.dense[rows],
        times=times,
        missing=examples.missing[rows],
        groups=groups,
    )


def joined(parts: Sequence[Examples]) -> Examples:
    """The examples of several blocks, one after the other."""
    if len(parts) == 1:
        return parts[0]

    first = parts[0]
    times = None
    if first.times is not None:
        times = np.concatenate([part.times for part in parts if part.times is not None])

    ids = {}
    for name in first.ids:
        ids[name] = Ragged.concat([part.ids[name] for part in parts])

    groups = {}
    for name in first.groups:
        groups[name] = np.concatenate([part.groups[name] for part in parts])

    return Examples(
        labels=np.concatenate([part.labels for part in parts]),
        ids=ids,
        dense=np.concatenate([part.dense for part in parts]),
        times=times,
        missing=np.concatenate([part.missing for part in parts]),
        groups=groups,
    )


def _taken_lists(lists: Ragged, rows: I64) -> Ragged:
    starts = lists.row_splits[rows]
    ends = lists.row_splits[rows + 1]
    lengths = ends - starts
    splits = splits_of(lengths)

    may_be_single = lists.values.size == len(lists)
    if may_be_single and (lengths == 1).all():
        return Ragged(lists.values[starts], splits)

    # Value j of the result is the j-th from the beginning of its row's list.
    shifts = starts - splits[:-1]
    places = np.arange(splits[-1])
    places += np.repeat(shifts, lengths)

    return Ragged(lists.values[places], splits)
