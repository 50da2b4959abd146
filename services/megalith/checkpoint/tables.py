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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.checkpoint import arrow_files, manifest, schema_json
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.manifest import ShardFile
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import F32, I64
from megalith.runtime.files import sync
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
    dim = table.layout.dim
    about = {
        _META: json.dumps(schema_json.to_json(config)),
        _DATA_TIME: str(table.max_update_s),
        _STATE_FIELDS: json.dumps(table.layout.state_fields),
    }

    schema = _schema(dim, table.layout.width - dim).with_metadata(about)
    limit = _rows_at_once(table.layout.width)
    has_rows = np.zeros(routing.NUM_BUCKETS, np.bool_)
    rows = 0
    offset = 0
    path = directory / name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        while True:
            part = table.dump(limit=limit, offset=offset, with_expired=True)
            if not part.ids.size:
                break

            offset = part.offset
            rows += part.ids.size
            buckets = routing.buckets_of(part.ids)
            has_rows[buckets] = True
            columns = [
                pa.array(buckets.astype(np.uint16)),
                pa.array(part.ids),
                _fixed_lists(part.rows[:, :dim]),
                _fixed_lists(part.rows[:, dim:]),
                pa.array(part.times.astype(np.uint32)),
            ]

            batch = pa.record_batch(columns, schema=schema)
            writer.write_batch(batch)

    sync(path)
    return ShardFile(
        name=name,
        kind=FileKind.TABLE,
        table=config.name,
        rows=rows,
        bytes=path.stat().st_size,
        sha256=manifest.sha256_of(path),
        buckets=arrow_files.ranges_of(has_rows),
    )


def _rows_at_once(width: int) -> int:
    """Rows of a record batch: as many as fit `_BATCH_BYTES`, within limits."""
    fitting = _BATCH_BYTES // (4 * width)
    return min(_MOST_ROWS, max(_LEAST_ROWS, fitting))


def header(directory: Path, file: ShardFile) -> Header:
    """What the file says about its table; the rest of it is not read."""
    with arrow_files.opened(directory, file) as reader:
        try:
            metadata = reader.schema.metadata
            config: TableConfig = schema_json.from_json(json.loads(metadata[_META]))
            data_time = metadata.get(_DATA_TIME)
            return Header(config, None if data_time is None else int(data_time))
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
        if data_time_s is not None:
            times[file.table] = max(times.get(file.table, 0), data_time_s)

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
    flat = np.ascontiguousarray(values).reshape(-1)
    kind = pa.list_(pa.float32(), values.shape[1])
    # from_arrays divides by the width, which is 0 for the state of a stateless optimizer.
    return pa.Array.from_buffers(kind, len(values), [None], children=[pa.array(flat)])


def _matrix(column: pa.FixedSizeListArray) -> NDArray[np.float32]:
    values: NDArray[np.float32] = column.flatten().to_numpy()
    return values.reshape(len(column), column.type.list_size)
