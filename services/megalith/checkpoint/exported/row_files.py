"""The file of a table in an exported model: id, row (compressed bytes) and updated_s.

The schema's metadata has the table's configuration as JSON under "megalith". Rows are compressed as
the segments of the table say (engine/segments/compressor.py).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files, schema_json
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.engine.segments.compressor import RowCodec
from megalith.engine.table import served
from megalith.engine.table.checks import finite_mask
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import I64, U8
from megalith.schema import TableConfig

_META = b"megalith"
_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """`not_finite` rows are left out: nothing could be computed with them."""

    file: ShardFile
    not_finite: int


class CompressedRows(NamedTuple):
    ids: I64
    rows: U8
    times: I64


def write(table: EmbeddingTable, directory: Path, name: str) -> WrittenTable:
    """Write all rows that can be served."""
    config = table.config
    codec = codec_of(config)
    schema = _schema(config, codec.row_bytes)
    path = directory / name

    rows = 0
    not_finite = 0

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for part in served.all_rows(table, _ROWS_AT_ONCE):
            is_kept = finite_mask(part.values)
            if is_kept is not None:
                num_left_out = np.count_nonzero(~is_kept)
                not_finite += int(num_left_out)

                ids = part.ids[is_kept]
                values = part.values[is_kept]
                times = part.times[is_kept]
                part = served.ServedRows(ids, values, times)

            columns = _columns(part, codec)
            batch = pa.record_batch(columns, schema=schema)
            writer.write_batch(batch)
            rows += part.ids.size

    file = arrow_files.written(path, FileKind.TABLE, config.name, rows)
    return WrittenTable(file, not_finite)


def config_of(reader: Any, path: Path) -> TableConfig:
    """The table that an open file is of."""
    try:
        described = reader.schema.metadata[_META]
        content = json.loads(described)
        config: TableConfig = schema_json.from_json(content)
        return config
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointDamaged(f"{path} does not describe a table: {error!r}") from error


def batches(reader: Any, codec: RowCodec, path: Path) -> Iterator[CompressedRows]:
    """All rows of an open file."""
    width = codec.row_bytes
    found = reader.schema.field("row").type
    if found != pa.binary(width):
        raise CheckpointDamaged(f"{path}: rows are {found}, its table has {width} bytes a row")

    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        yield CompressedRows(
            batch.column("id").to_numpy(),
            _matrix(batch.column("row"), width),
            batch.column("updated_s").to_numpy(),
        )


def codec_of(config: TableConfig) -> RowCodec:
    parts = []
    for segment in config.segments:
        parts.append((segment.compressor, segment.dim))

    return RowCodec(parts)


def _schema(config: TableConfig, row_bytes: int) -> Any:
    fields = [
        ("id", pa.int64()),
        ("row", pa.binary(row_bytes)),
        ("updated_s", pa.int64()),
    ]
    content = schema_json.to_json(config)
    described = json.dumps(content)
    return pa.schema(fields).with_metadata({_META: described})


def _columns(part: served.ServedRows, codec: RowCodec) -> list[Any]:
    values = np.ascontiguousarray(part.values)
    compressed = codec.encode(values)

    kind = pa.binary(codec.row_bytes)
    buffers = [
        None,  # which rows are missing: none
        pa.py_buffer(compressed.tobytes()),
    ]
    rows = pa.Array.from_buffers(kind, part.ids.size, buffers)

    ids = pa.array(part.ids)
    times = pa.array(part.times, pa.int64())
    return [ids, rows, times]


def _matrix(column: Any, width: int) -> U8:
    _, content = column.buffers()
    flat = np.frombuffer(content, np.uint8)
    begin = column.offset * width
    end = begin + len(column) * width

    return flat[begin:end].reshape(-1, width)
