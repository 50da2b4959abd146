"""Writing the file of a table's rows: grouped by bucket, with the optimizers' state by name.

A record batch has the rows of at most 32 neighbouring buckets. They are collected until they are
enough for one, whatever the order in which rows come.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from megalith.checkpoint.files import row_columns
from megalith.checkpoint.files.row_groups import NUM_GROUPS, RowGroups
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files, schema_json
from megalith.checkpoint.layout.checked_file import CheckedFile
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.engine.table.row_layout import RowLayout
from megalith.kernels.dtypes import F32, I64
from megalith.schema import TableConfig
from megalith.wire import routing


class RowFile:
    """The file of a table's rows while it is being written: a context, and `written` after it."""

    def __init__(
        self,
        config: TableConfig,
        layout: RowLayout,
        data_time_s: int,
        directory: Path,
        name: str,
    ) -> None:
        described = schema_json.to_json(config)
        about = {
            row_columns.META: json.dumps(described),
            row_columns.DATA_TIME: str(data_time_s),
            row_columns.STATE_FIELDS: json.dumps(layout.state_fields),
        }

        self._table = config.name
        columns = row_columns.schema(layout)
        self._schema = columns.with_metadata(about)

        serialized = self._schema.serialize()
        head_size = row_columns.MAGIC_BYTES + serialized.size
        self._path = directory / name
        self._file = CheckedFile(self._path, head_size)
        self._groups = RowGroups(layout)
        self._has_rows = np.zeros(routing.NUM_BUCKETS, np.bool_)
        self._rows = 0
        self._blocks: list[str] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        file = self._open.enter_context(self._file)
        writer = pa.ipc.new_file(file, self._schema)
        self._writer = self._open.enter_context(writer)
        self._open.push(self._end)  # before the others: what waits is written while they are open
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def _end(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()

    def add(self, ids: I64, rows: F32, times: I64) -> None:
        """Take some rows: embedding and optimizer state side by side."""
        self._rows += ids.size
        size = self._groups.most_added
        for begin in range(0, ids.size, size):
            end = begin + size
            self._groups.add(
                ids[begin:end],
                rows[begin:end],
                times[begin:end],
                self._has_rows,
            )
            self._write_full_groups()

    def _write_full_groups(self) -> None:
        is_full = self._groups.counts >= self._groups.batch_rows
        full = np.flatnonzero(is_full)
        for group in full.tolist():
            self._write(range(group, group + 1))

    def flush(self) -> None:
        """Write the rows that wait for others of their groups, and give back their memory.

        Neighbouring groups come into one batch where they fit. An id may come again after this:
        before, it would be twice in one batch.
        """
        most_rows = self._groups.batch_rows
        counts = self._groups.counts.tolist()
        first = 0
        rows = 0
        for group, count in enumerate(counts):
            if rows + count > most_rows:
                self._write(range(first, group))
                first = group
                rows = 0

            rows += count

        self._write(range(first, NUM_GROUPS))
        self._groups.clear()

    def _write(self, groups: range) -> None:
        batch = self._groups.batch(groups)
        if batch is None:
            return

        columns = row_columns.arrays(
            batch.buckets,
            batch.ids,
            batch.floats,
            batch.times,
        )
        record_batch = pa.record_batch(columns, schema=self._schema)
        self._writer.write_batch(record_batch)

        first = batch.buckets.min()
        last = batch.buckets.max()
        block = self._file.end_block(int(first), int(last), batch.ids.size)
        self._blocks.append(str(block))

    def written(self) -> ShardFile:
        """What is on disk, once it is: the file is closed before."""
        if self._file.head is None:
            raise AssertionError(f"{self._path}: Arrow wrote a head of another size than expected")

        return ShardFile(
            name=self._path.name,
            kind=FileKind.TABLE,
            table=self._table,
            rows=self._rows,
            bytes=self._file.size,
            sha256="",  # its blocks are all of it, and each has a checksum
            buckets=arrow_files.ranges_of(self._has_rows),
            blocks=(str(self._file.head), *self._blocks, str(self._file.end_block())),
        )
