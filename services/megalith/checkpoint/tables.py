"""The file of a table's rows in a checkpoint.

Its columns are bucket, id, embedding, state and updated_s; the schema's metadata has the table's
configuration as JSON under "megalith", which floats of the state are what under "state_fields", and
its data time, Unix seconds, under "max_update_s". Rows that are expired are in the file too:
whoever loads it drops them.

Each server has seen its own data time, but a table has one: the newest that any of its files says.
Restoring and serving judge all rows by it, also those of a server that was behind and still held
them. A row whose updated_s is 0 has no time and so no age; it is kept, and given the data time of
the table.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.checkpoint import arrow_files, manifest, schema_json
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.manifest import ShardFile
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.table.row_layout import RowLayout
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import F32, I64
from megalith.schema import TableConfig
from megalith.wire import routing

_MOST_ROWS = 65_536  # of a record batch, copied beside training
_LEAST_ROWS = 1024
_BATCH_BYTES = 16 << 20  # what a batch of wide rows takes; a reader has a few of them in memory
_META = b"megalith"
_DATA_TIME = b"max_update_s"
_STATE_FIELDS = b"state_fields"


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says about its table. `data_time_s` is None in files of early versions."""

    config: TableConfig
    data_time_s: int | None


class RowBatch(NamedTuple):
    """Some rows of a file; `states` is the optimizer state."""

    ids: I64
    embeddings: F32
    states: F32
    times: I64


def write(table: EmbeddingTable, config: TableConfig, directory: Path, name: str) -> ShardFile:
    """Write all rows, expired ones too; returns what was written.

    `config` is what the table had when its save began: it may get another one meanwhile.
    """
    limit = rows_at_once(table.layout.width)
    offset = 0
    with RowFile(config, table.layout, table.max_update_s, directory, name) as file:
        while True:
            part = table.dump(limit=limit, offset=offset, with_expired=True)
            if not part.ids.size:
                break

            offset = part.offset
            file.add(part.ids, part.rows, part.times)

    return file.written()


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
        about = {
            _META: json.dumps(schema_json.to_json(config)),
            _DATA_TIME: str(data_time_s),
            _STATE_FIELDS: json.dumps(layout.state_fields),
        }

        self._table = config.name
        self._dim = layout.dim
        state_width = layout.width - layout.dim
        schema = _schema(layout.dim, state_width)
        self._schema = schema.with_metadata(about)

        self._path = directory / name
        self._has_rows = np.zeros(routing.NUM_BUCKETS, np.bool_)
        self._rows = 0
        self._open = ExitStack()

    def __enter__(self) -> Self:
        file = pa.OSFile(str(self._path), "wb")
        sink = self._open.enter_context(file)

        writer = pa.ipc.new_file(sink, self._schema)
        self._writer = self._open.enter_context(writer)

        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, ids: I64, rows: F32, times: I64) -> None:
        """Write some rows: embedding and optimizer state side by side."""
        buckets = routing.buckets_of(ids)
        self._has_rows[buckets] = True
        self._rows += ids.size

        embeddings = rows[:, : self._dim]
        states = rows[:, self._dim :]
        columns = [
            pa.array(buckets.astype(np.uint16)),
            pa.array(ids),
            _fixed_lists(embeddings),
            _fixed_lists(states),
            pa.array(times.astype(np.uint32)),
        ]

        batch = pa.record_batch(columns, schema=self._schema)
        self._writer.write_batch(batch)

    def written(self) -> ShardFile:
        """What is on disk, once it is: the file is closed before."""
        file = arrow_files.written(self._path, FileKind.TABLE, self._table, self._rows)
        buckets = arrow_files.ranges_of(self._has_rows)
        return replace(file, buckets=buckets)


def rows_at_once(width: int) -> int:
    """Rows of a record batch: as many as fit `_BATCH_BYTES`, within limits."""
    fitting = _BATCH_BYTES // (4 * width)
    return min(_MOST_ROWS, max(_LEAST_ROWS, fitting))


def header(directory: Path, file: ShardFile) -> Header:
    """What the file says about its table; the rest of it is not read."""
    with arrow_files.opened(directory, file) as reader:
        try:
            metadata = reader.schema.metadata
            described = json.loads(metadata[_META])
            config: TableConfig = schema_json.from_json(described)

            data_time = metadata.get(_DATA_TIME)
            data_time_s = None if data_time is None else int(data_time)

            return Header(config, data_time_s)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointDamaged(
                f"{directory / file.name} does not describe a table: {error!r}"
            ) from error


def row_batches(directory: Path, file: ShardFile) -> Iterator[RowBatch]:
    """All rows of a file, after a check that it is the file that was written.

    CheckpointDamaged at the end if they are not as many as the manifest says.
    """
    manifest.verify(directory, file)
    rows = 0

    with arrow_files.opened(directory, file) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            rows += batch.num_rows
            yield row_batch(batch)

    if rows != file.rows:
        raise CheckpointDamaged(
            f"{directory / file.name} has {rows} rows, the manifest says {file.rows}"
        )


def row_batch(batch: pa.RecordBatch) -> RowBatch:
    """The rows of a record batch."""
    return RowBatch(
        batch.column("id").to_numpy(),
        _matrix(batch.column("embedding")),
        _matrix(batch.column("state")),
        batch.column("updated_s").to_numpy().astype(np.int64),
    )


def newest(headers: dict[str, Header], files: list[ShardFile]) -> dict[str, int]:
    """The data time of each table, over all of its files, by name.

    Without those whose files do not say it.
    """
    times: dict[str, int] = {}
    for file in files:
        data_time_s = headers[file.name].data_time_s
        if data_time_s is None:
            continue

        before_s = times.get(file.table, 0)
        times[file.table] = max(before_s, data_time_s)

    return times


def _schema(dim: int, state_width: int) -> Any:
    return pa.schema(
        [
            pa.field("bucket", pa.uint16()),
            pa.field("id", pa.int64()),
            pa.field("embedding", pa.list_(pa.float32(), dim)),
            pa.field("state", pa.list_(pa.float32(), state_width)),
            pa.field("updated_s", pa.uint32()),
        ]
    )


def _fixed_lists(values: NDArray[np.float32]) -> pa.FixedSizeListArray:
    count, width = values.shape
    flat = np.ascontiguousarray(values).reshape(-1)
    elements = pa.array(flat)
    kind = pa.list_(pa.float32(), width)

    # from_arrays divides by the width, which is 0 for the state of a stateless optimizer.
    return pa.Array.from_buffers(kind, count, [None], children=[elements])


def _matrix(column: pa.FixedSizeListArray) -> NDArray[np.float32]:
    values: NDArray[np.float32] = column.flatten().to_numpy()
    return values.reshape(len(column), column.type.list_size)
