"""Rows that wait for others of their buckets, until they are enough for a record batch.

Each group of 32 neighbouring buckets has room for one batch, as columns. A batch is written from
there, so that a row is copied once on its way from a chunk of the table to the file.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.checkpoint.files import row_columns
from megalith.checkpoint.kernels import grouping
from megalith.checkpoint.kernels.grouping import GroupColumns
from megalith.engine.table.reservation import Reservation
from megalith.engine.table.row_layout import RowLayout
from megalith.kernels.dtypes import F32, I64, Bools
from megalith.wire import routing

_GROUP = 32  # buckets; a ps of 32 has one group
NUM_GROUPS = routing.NUM_BUCKETS // _GROUP
_BATCH_BYTES = 1 << 20  # of the floats of a batch
_MOST_ROWS = 16_384
_LEAST_ROWS = 64
_ADDED_BYTES = 4 << 20  # of the floats of rows that are added at once
_LEAST_ADDED = 256


class ColumnBatch(NamedTuple):
    """The columns of a record batch. They change when more rows are added."""

    buckets: NDArray[np.uint16]
    ids: I64
    floats: list[F32]
    times: NDArray[np.uint32]


class RowGroups:
    """Used by one thread. Memory is taken with the first row, and given back by `clear`."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        width = layout.width
        self.batch_rows = _fitting(_BATCH_BYTES, width, _LEAST_ROWS)
        self.most_added = rows_at_once(width)
        self._room = self.batch_rows + self.most_added
        self._columns: GroupColumns | None = None

    def add(self, ids: I64, rows: F32, times: I64, has_rows: Bools) -> None:
        """Take some rows, `most_added` at most; `has_rows` is set for their buckets.

        No group has `batch_rows` before.
        """
        if self._columns is None:
            self._columns = _columns_of(self._layout, self._room)

        flat = rows.reshape(-1)
        grouping.collect(ids, flat, times, _GROUP, has_rows, self._columns)

    @property
    def counts(self) -> I64:
        """How many rows of each group wait."""
        if self._columns is None:
            return np.zeros(NUM_GROUPS, np.int64)

        return self._columns.counts

    def batch(self, groups: range) -> ColumnBatch | None:
        """The rows of these groups, which wait no longer; None if there are none."""
        columns = self._columns
        if columns is None:
            return None

        filled = []
        for group in groups:
            if columns.counts[group]:
                part = _part(columns, self._room, self._layout, group)
                filled.append(part)

        columns.counts[groups.start : groups.stop] = 0
        if not filled:
            return None

        if len(filled) == 1:
            return filled[0]

        return _joined(filled)

    def clear(self) -> None:
        self._columns = None


def _joined(parts: list[ColumnBatch]) -> ColumnBatch:
    buckets, ids, floats, times = zip(*parts, strict=True)
    columns = zip(*floats, strict=True)
    return ColumnBatch(
        np.concatenate(buckets),
        np.concatenate(ids),
        [np.concatenate(column) for column in columns],
        np.concatenate(times),
    )


def _columns_of(layout: RowLayout, room: int) -> GroupColumns:
    """Room for so many rows of each group.

    Small pages that come as they are used: a table of a few rows takes a few of them.
    """
    firsts = []
    widths = []
    for column in row_columns.float_columns(layout):
        firsts.append(column.first)
        widths.append(column.width)

    num_rows = NUM_GROUPS * room
    num_floats = num_rows * layout.width
    return GroupColumns(
        counts=np.zeros(NUM_GROUPS, np.int64),
        buckets=_pages(num_rows, np.uint16),
        ids=_pages(num_rows, np.int64),
        times=_pages(num_rows, np.uint32),
        floats=_pages(num_floats, np.float32),
        firsts=np.array(firsts, np.int64),
        widths=np.array(widths, np.int64),
    )


def _pages(count: int, dtype: Any) -> NDArray[Any]:
    element = np.dtype(dtype)
    memory = Reservation(count * element.itemsize)
    return memory.array(dtype)


def _part(columns: GroupColumns, room: int, layout: RowLayout, group: int) -> ColumnBatch:
    """The rows of one group, where they are."""
    count = int(columns.counts[group])
    begin = group * room
    end = begin + count

    floats = []
    of_group = columns.floats[begin * layout.width :]
    for column in row_columns.float_columns(layout):
        first = column.first * room
        values = of_group[first : first + count * column.width]
        floats.append(values.reshape(count, column.width))

    return ColumnBatch(
        columns.buckets[begin:end],
        columns.ids[begin:end],
        floats,
        columns.times[begin:end],
    )


def rows_at_once(width: int) -> int:
    """Rows that are best copied at once: some milliseconds beside training."""
    return _fitting(_ADDED_BYTES, width, _LEAST_ADDED)


def _fitting(num_bytes: int, width: int, least: int) -> int:
    """How many rows of so many floats fit, within limits."""
    row_bytes = 4 * width
    fitting = num_bytes // row_bytes
    return int(np.clip(fitting, least, _MOST_ROWS))
