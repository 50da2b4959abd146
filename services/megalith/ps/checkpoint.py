"""A ps's part of a checkpoint: Arrow files for the rows, filter and touched keys of each table, one for its variables.

Any Arrow reader opens them. A table's columns are bucket, id, embedding, state and updated_s; the schema's metadata has
its configuration as JSON under "megalith", which floats of the state are what under "state_fields", and its data time,
Unix seconds, under "max_update_s". Rows expired at that time are left out. A ps restores the rows of its own buckets,
whatever the number of servers that wrote them.
"""

import contextlib
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.ps import filter_files, schema_json, variable_files
from megalith.ps.counting_filter import CountingFilter
from megalith.ps.filter_union import State, union_of
from megalith.ps.kernels.dtypes import F32, I64, Bools
from megalith.ps.row_layout import RowLayout
from megalith.ps.serving import ServingTable
from megalith.ps.store import Store
from megalith.ps.table import EmbeddingTable
from megalith.ps.variable_files import SavedVariable
from megalith.runtime import manifest
from megalith.runtime.files import sync
from megalith.runtime.manifest import Restored, ShardFile
from megalith.wire import routing
from megalith.wire.errors import CheckpointDamaged, SaveFailed
from megalith.wire.schema import TableConfig

logger = logging.getLogger(__name__)

_ROWS_PER_SLICE = 65_536  # rows of a record batch, copied beside training: 8 MB at 128 bytes a row
_META, _DATA_TIME, _STATE_FIELDS = b"megalith", b"max_update_s", b"state_fields"


def write_shard(store: Store, directory: Path, save_id: str, index: int, num_ps: int) -> list[ShardFile]:
    """Write this server's tables and variables; returns what was written.

    Whatever goes wrong, none of the files stays. That goes for a directory that was removed meanwhile too, because the
    save took too long or another ps failed.
    """
    suffix = f"ps-{index:05}-of-{num_ps:05}-{save_id}.arrow"
    try:
        files = _write_files(store, directory, suffix)
        if missing := [file.name for file in files if not (directory / file.name).exists()]:
            raise SaveFailed(f"the save was given up: {directory} has lost {missing[0]}")
    except BaseException:
        for path in directory.glob(f"*-{suffix}"):
            with contextlib.suppress(OSError):  # what went wrong is said, not what came of it
                path.unlink()
        raise
    return files


def _write_files(store: Store, directory: Path, suffix: str) -> list[ShardFile]:
    files = []
    for number, table in enumerate(store.tables()):
        # The number, not the readable part, keeps the files of two tables apart.
        end = f"{number:04}-{_readable(table.config.name)}-{suffix}"
        files.append(_write_table(table, directory, f"table-{end}"))
        files += _write_memory(table, store.buckets(), directory, end)
    files.append(variable_files.write(store.variables(), directory, f"variables-{suffix}"))
    return files


def restore_shard(store: Store, directory: Path, owners: NDArray[np.uint16], index: int) -> Restored:
    """Load the rows and variables whose buckets `index` owns.

    Every file is verified against the manifest before a row of it is used.
    """
    started = time.monotonic()
    content = manifest.read(directory)
    tables: dict[str, EmbeddingTable] = {}
    filters: dict[str, list[State | None]] = {}
    touched: list[tuple[str, I64, int]] = []
    saved: list[SavedVariable] = []
    for file in content.files:
        manifest.verify(directory, file)
        with pa.memory_map(str(directory / file.name)) as source:
            reader = _open(source, file)
            match file.kind:
                case "table":
                    config: TableConfig = schema_json.from_json(json.loads(reader.schema.metadata[_META]))
                    if config.name not in tables:
                        tables[config.name] = EmbeddingTable(config)
                    _load_rows(tables[config.name], RowLayout(config).signature, reader, owners, index)
                case filter_files.FILTER:
                    state = filter_files.read_filter(reader, file.name, owners == index)
                    filters.setdefault(file.table, []).append(state)
                case filter_files.TOUCHED:
                    touched.append((file.table, *filter_files.read_touched(reader, owners == index)))
                case "variables":
                    saved += variable_files.read(reader)
                case _:
                    raise CheckpointDamaged(f"{file.name} is of unknown kind {file.kind!r}: written by a newer version")
    for table in tables.values():
        _restore_filter(table, filters.get(table.config.name))
    for name, keys, forgotten in touched:
        tables[name].restore_touched(keys, forgotten)
    variables = variable_files.owned(saved, owners, index)
    for table in tables.values():
        store.adopt(table=table)
    for variable in variables:
        store.adopt(variable=variable)
    restored = Restored(
        path=str(directory),
        step=content.step,
        rows=sum(len(table) for table in tables.values()),
        seconds=time.monotonic() - started,
    )
    logger.info("restored path=%s rows=%d seconds=%.1f", restored.path, restored.rows, restored.seconds)
    return restored


def load_for_serving(directory: Path, *, skip_zero_embedding: bool = False) -> dict[str, ServingTable]:
    """All tables of a checkpoint, by name, as serving stores them; every file is verified first."""
    tables: dict[str, ServingTable] = {}
    for file in manifest.read(directory).files:
        if file.kind != "table":
            continue
        manifest.verify(directory, file)
        with pa.memory_map(str(directory / file.name)) as source:
            reader = _open(source, file)
            config: TableConfig = schema_json.from_json(json.loads(reader.schema.metadata[_META]))
            if config.name not in tables:
                tables[config.name] = ServingTable(config, skip_zero_embedding=skip_zero_embedding)
            for number in range(reader.num_record_batches):
                rows = reader.get_batch(number)
                keys, times = (rows.column(name).to_numpy().astype(np.int64) for name in ("id", "updated_s"))
                tables[config.name].upsert(keys, _matrix(rows.column("embedding")), times)
    return tables


def _write_memory(table: EmbeddingTable, buckets: Bools, directory: Path, end: str) -> list[ShardFile]:
    """Touched keys and filter of a table, as far as it has them.

    They come after the rows: what was counted or touched meanwhile is in them, if not in the rows, so that no id has to
    be seen more often after a restart than before.
    """
    name, files = table.config.name, []
    if table.touched is not None:
        forgotten = table.stats().touched_overflow
        files.append(filter_files.write_touched(table.touched, forgotten, name, directory, f"touched-{end}"))
    if isinstance(table.admission, CountingFilter):
        files.append(filter_files.write_filter(table.admission, name, buckets, directory, f"filter-{end}"))
    return files


def _restore_filter(table: EmbeddingTable, states: list[State | None] | None) -> None:
    """Give a table what its servers had counted; None are filters of servers whose buckets went elsewhere."""
    if not isinstance(table.admission, CountingFilter):
        return
    if states is None:
        raise CheckpointDamaged(f"the checkpoint has rows of table {table.config.name}, but not its admission filter")
    concerned = [state for state in states if state is not None]
    if concerned:
        table.admission.restore(union_of(concerned))


def _load_rows(table: EmbeddingTable, signature: str, reader: Any, owners: NDArray[np.uint16], index: int) -> None:
    refused, data_time_s = 0, reader.schema.metadata.get(_DATA_TIME)
    max_update_s = None if data_time_s is None else int(data_time_s)  # older files have none
    for number in range(reader.num_record_batches):
        rows = _owned_rows(reader.get_batch(number), owners, index)
        refused += table.load(*rows, signature, max_update_s).refused
    if refused:
        logger.warning("memory budget too small for all rows table=%s refused=%d", table.config.name, refused)


def _write_table(table: EmbeddingTable, directory: Path, name: str) -> ShardFile:
    dim, rows, offset = table.layout.dim, 0, 0
    state_width = table.layout.width - dim
    fields = [
        pa.field("bucket", pa.uint16()),
        pa.field("id", pa.int64()),
        pa.field("embedding", pa.list_(pa.float32(), dim)),
        pa.field("state", pa.list_(pa.float32(), state_width)),
        pa.field("updated_s", pa.uint32()),
    ]
    about = {
        _META: json.dumps(schema_json.to_json(table.config)),
        _DATA_TIME: str(table.max_update_s),
        _STATE_FIELDS: json.dumps(table.layout.state_fields),
    }
    arrow_schema = pa.schema(fields, metadata=about)
    path = directory / name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, arrow_schema) as writer:
        while (part := table.dump(limit=_ROWS_PER_SLICE, offset=offset)).keys.size:
            offset, rows = part.offset, rows + part.keys.size
            columns = [
                pa.array(routing.buckets_of(part.keys).astype(np.uint16)),
                pa.array(part.keys),
                _fixed_lists(part.rows[:, :dim]),
                _fixed_lists(part.rows[:, dim:]),
                pa.array(part.times.astype(np.uint32)),
            ]
            writer.write_batch(pa.record_batch(columns, schema=arrow_schema))
    sync(path)
    return ShardFile(name, "table", table.config.name, rows, path.stat().st_size, manifest.sha256_of(path))


def _owned_rows(batch: pa.RecordBatch, owners: NDArray[np.uint16], index: int) -> tuple[I64, F32, I64]:
    """(ids, whole rows, times) of the buckets that `index` owns."""
    keys = batch.column("id").to_numpy()
    mine = owners[routing.buckets_of(keys)] == index
    rows = np.concatenate([_matrix(batch.column(name))[mine] for name in ("embedding", "state")], axis=1)
    return keys[mine], rows, batch.column("updated_s").to_numpy()[mine].astype(np.int64)


def _open(source: Any, file: ShardFile) -> Any:
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid as error:
        raise CheckpointDamaged(f"{file.name} is not an Arrow file: {error}") from error


def _fixed_lists(values: NDArray[np.float32]) -> pa.FixedSizeListArray:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    # from_arrays divides by the width, which is 0 for the state of a stateless optimizer.
    return pa.Array.from_buffers(pa.list_(pa.float32(), values.shape[1]), len(values), [None], children=[flat])


def _matrix(column: pa.FixedSizeListArray) -> NDArray[np.float32]:
    matrix: NDArray[np.float32] = column.flatten().to_numpy().reshape(len(column), column.type.list_size)
    return matrix


def _readable(table: str) -> str:
    """Enough of a table's name to recognise its file; the manifest says which table it really is."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", table[:60])
