"""The file of a table's rows in a checkpoint, as the rest of this room sees it.

row_columns.py names its columns, and layout/blocks.py says where which rows are. The schema's
metadata has the table's configuration as JSON under "megalith", which floats of a row's state are
what under "state_fields", and its data time, Unix seconds, under "max_update_s". Rows that are
expired are in the file too: whoever loads it drops them.

Each server has seen its own data time, but a table has one: the newest that any of its files says.
Restoring and serving judge all rows by it, also those of a server that was behind and still held
them. A row whose updated_s is 0 has no time and so no age; it is kept, and given the data time of
the table.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from megalith.checkpoint.files import row_columns
from megalith.checkpoint.files.row_file import RowFile
from megalith.checkpoint.files.row_groups import rows_at_once
from megalith.checkpoint.layout import arrow_files, blocks, schema_json
from megalith.checkpoint.layout.blocks import Block
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.pace import Pace
from megalith.checkpoint.storage.location import Location
from megalith.engine.table.embedding_table import Chunk, EmbeddingTable
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import F32, I64
from megalith.schema import TableConfig


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


def write(
    table: EmbeddingTable, config: TableConfig, directory: Path, name: str, pace: Pace
) -> ShardFile:
    """Write all rows, expired ones too; returns what was written.

    `config` is what the table had when its save began: it may get another one meanwhile.
    """
    with RowFile(config, table.layout, table.max_update_s, directory, name) as file:
        for part in _parts_of(table):
            file.add(part.ids, part.rows, part.times)
            pace.rest()

    return file.written()


def _parts_of(table: EmbeddingTable) -> Iterator[Chunk]:
    """All rows of a table; the next ones are copied while the caller is at work on some."""
    limit = rows_at_once(table.layout.width)

    def copy_from(offset: int) -> Chunk:
        return table.dump(limit=limit, offset=offset, with_expired=True)

    with ThreadPoolExecutor(1, "dump") as pool:
        part = copy_from(0)
        while part.ids.size:
            following = pool.submit(copy_from, part.offset)
            yield part
            part = following.result()


def header(directory: Location, file: ShardFile) -> Header:
    """What the file says about its table; the rest of it is not read."""
    try:
        metadata = schema_of(directory, file).metadata
        described = json.loads(metadata[row_columns.META])
        config: TableConfig = schema_json.from_json(described)

        data_time = metadata.get(row_columns.DATA_TIME)
        data_time_s = None if data_time is None else int(data_time)

        return Header(config, data_time_s)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointDamaged(
            f"{directory / file.name} does not describe a table: {error!r}"
        ) from error


def schema_of(directory: Location, file: ShardFile) -> Any:
    """The columns and what is said about them; of a file with blocks, after a check of its head."""
    found = blocks.blocks_of(file)
    if not found:
        with arrow_files.opened(directory, file) as reader:
            return reader.schema

    head = blocks.read(directory, file, found[0])
    with arrow_files.damaged_if_invalid(directory / file.name):
        return pa.ipc.read_schema(pa.py_buffer(head).slice(row_columns.MAGIC_BYTES))


def row_batches(directory: Location, file: ShardFile) -> Iterator[RowBatch]:
    """All rows of a file, after a check that it is the file that was written.

    CheckpointDamaged at the end if they are not as many as the manifest says.
    """
    rows = 0

    with arrow_files.verified(directory, file) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            rows += batch.num_rows
            yield row_batch(batch)

    if rows != file.rows:
        raise CheckpointDamaged(
            f"{directory / file.name} has {rows} rows, the manifest says {file.rows}"
        )


def block_rows(directory: Location, file: ShardFile, schema: Any, block: Block) -> list[RowBatch]:
    """The rows of a block, one batch, after a check that they are those that were written."""
    data = blocks.read(directory, file, block)
    with arrow_files.damaged_if_invalid(directory / file.name):
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)

    if batch.num_rows != block.rows:
        raise CheckpointDamaged(
            f"{directory / file.name} has {batch.num_rows} rows at byte {block.offset}, "
            f"the manifest says {block.rows}"
        )

    return [row_batch(batch)]


def row_batch(batch: pa.RecordBatch) -> RowBatch:
    """The rows of a record batch."""
    return RowBatch(
        batch.column("id").to_numpy(),
        row_columns.matrix(batch.column("embedding")),
        row_columns.states_of(batch),
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
