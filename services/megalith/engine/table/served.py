"""Rows of a table as serving sees them: what a lookup gives, and when the row was updated."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.table.row_layout import RowLayout
from megalith.kernels.dtypes import F32, I64
from megalith.schema import Compressor, TableConfig


class ServedRows(NamedTuple):
    """Embeddings of ids, and the data time of the last update of each, in Unix seconds."""

    ids: I64
    values: F32
    times: I64


class RowsNow(NamedTuple):
    """The rows that some ids have now, and those of the ids that have none."""

    present: ServedRows
    gone: I64


ServedRow = tuple[tuple[int, Compressor], ...]  # by segment, what a served row depends on


def row_of(config: TableConfig) -> ServedRow:
    """What a served row is: with other settings here every row is another one."""
    return tuple((segment.dim, segment.compressor) for segment in config.segments)


def look_up(table: EmbeddingTable, ids: I64) -> RowsNow:
    """The rows of ids as they are now, each of them whole."""
    entries = table.lookup_entry(ids)
    has_row = entries.times >= 0
    times = entries.times[has_row]
    values = retrieved(table.layout, entries.values[has_row])

    present = ServedRows(ids[has_row], values, times)
    absent = ids[~has_row]
    return RowsNow(present, absent)


def all_rows(table: EmbeddingTable, limit: int) -> Iterator[ServedRows]:
    """Every row, `limit` of them at a time, while others write.

    A row that exists during the whole walk is met once.
    """
    offset = 0
    while True:
        part = table.dump(limit=limit, offset=offset, with_expired=True)
        if not part.ids.size:
            return

        offset = part.offset
        embeddings = part.rows[:, : table.layout.dim]
        yield ServedRows(part.ids, retrieved(table.layout, embeddings), part.times)


def retrieved(layout: RowLayout, embeddings: F32) -> F32:
    """What a lookup makes of embeddings."""
    values = np.ascontiguousarray(embeddings)
    segments = zip(layout.retrievers, layout.weight_offsets, layout.dims, strict=True)
    for retriever, column, dim in segments:
        retriever.forward(values, column, dim)

    return values
