"""The rows of one table of a checkpoint: all of them, or those of some buckets.

Two checkpoints are compared bucket by bucket, so that only a part of each is in memory at a time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from megalith.checkpoint import tables as table_files
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.inspection.files import open_rows
from megalith.checkpoint.manifest import Manifest, ShardFile
from megalith.checkpoint.tables import Header, RowBatch
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import I64, Bools
from megalith.wire import routing


class SortedRows(NamedTuple):
    """Some rows, by id: row `order[i]` of `rows` has the id `ids[i]`, and `ids` is sorted."""

    ids: I64
    order: I64
    rows: RowBatch


class TableRows:
    """The rows of one table, out of the files of all servers. The files were verified before."""

    def __init__(self, directory: Path, name: str, files: list[ShardFile]) -> None:
        self.name = name
        self.rows = sum(file.rows for file in files)
        self.bytes = sum(file.bytes for file in files)
        self._directory = directory
        self._files = files
        self.header: Header = table_files.header(directory, files[0])

    def batches(self) -> Iterator[RowBatch]:
        """All rows, some at a time."""
        for file in self._files:
            yield from open_rows(self._directory, file)

    def of_buckets(self, first: int, end: int) -> SortedRows:
        """The rows of the buckets first..end-1. Every file is read; the others' rows are not kept.

        CheckpointDamaged if an id occurs twice.
        """
        parts = []
        for batch in self.batches():
            buckets = routing.buckets_of(batch.ids)
            is_wanted = (buckets >= first) & (buckets < end)
            if is_wanted.all():
                parts.append(batch)
            else:
                parts.append(_selected(batch, is_wanted))

        rows = _joined(parts, self.header)
        order = np.argsort(rows.ids, kind="stable")
        ids = rows.ids[order]
        if (ids[1:] == ids[:-1]).any():
            raise CheckpointDamaged(
                f"{self._directory}: table {self.name} has ids that occur twice; "
                f"megalith ckpt verify {self._directory} names their files"
            )

        return SortedRows(ids, order, rows)


def tables_of(content: Manifest, directory: Path) -> dict[str, TableRows]:
    """The tables of a checkpoint, by name."""
    files: dict[str, list[ShardFile]] = {}
    for file in content.files:
        if file.kind == FileKind.TABLE:
            files.setdefault(file.table, []).append(file)

    return {name: TableRows(directory, name, files[name]) for name in sorted(files)}


def _selected(batch: RowBatch, is_wanted: Bools) -> RowBatch:
    return RowBatch(
        batch.ids[is_wanted],
        batch.embeddings[is_wanted],
        batch.states[is_wanted],
        batch.times[is_wanted],
    )


def _joined(parts: list[RowBatch], header: Header) -> RowBatch:
    if not parts:
        width = header.config.dim
        return RowBatch(
            np.empty(0, np.int64),
            np.empty((0, width), np.float32),
            np.empty((0, 0), np.float32),
            np.empty(0, np.int64),
        )

    if len(parts) == 1:
        return parts[0]

    return RowBatch(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.embeddings for part in parts]),
        np.concatenate([part.states for part in parts]),
        np.concatenate([part.times for part in parts]),
    )
