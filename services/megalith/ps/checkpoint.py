"""A ps's part of a checkpoint: one Arrow file per table and one for its variables.

Any Arrow reader opens them. A table's columns are bucket, id, embedding, state and updated_s, rows in bucket order; its
configuration is JSON in the schema's metadata under "megalith". A ps restores the rows of the buckets that it owns,
whatever the number of servers that wrote them.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.ps.store import Store
from megalith.ps.table import EmbeddingTable, RowBatch, sliced
from megalith.ps.variable import Variable
from megalith.runtime import manifest
from megalith.runtime.files import sync
from megalith.runtime.manifest import ShardFile
from megalith.wire import routing, schema
from megalith.wire.errors import CheckpointDamaged
from megalith.wire.schema import Segment, TableConfig, VariableConfig

_ROWS_PER_SLICE = 65_536  # rows copied under the table's lock at once: about 10 ms at 128 bytes a row
_META = b"megalith"


def write_shard(store: Store, directory: Path, save_id: str, index: int, num_ps: int) -> list[ShardFile]:
    """Write this server's tables and variables; returns what was written."""
    suffix = f"ps-{index:05}-of-{num_ps:05}-{save_id}.arrow"
    # The number, not the readable part, keeps the files of two tables apart.
    files = [
        _write_table(table, directory, f"table-{number:04}-{_readable(table.config.name)}-{suffix}")
        for number, table in enumerate(store.tables())
    ]
    files.append(_write_variables(store.variables(), directory, f"variables-{suffix}"))
    return files


def restore_shard(store: Store, directory: Path, owners: NDArray[np.uint16], index: int) -> int:
    """Load the rows and variables whose buckets `index` owns; returns the number of rows.

    Every file is verified against the manifest before a row of it is used.
    """
    tables: dict[str, EmbeddingTable] = {}
    variables: list[Variable] = []
    for file in manifest.read(directory).files:
        manifest.verify(directory, file)
        with pa.memory_map(str(directory / file.name)) as source:
            reader = _open(source, file)
            if file.kind == "table":
                config = _config_from_json(json.loads(reader.schema.metadata[_META]))
                table = tables.setdefault(config.name, EmbeddingTable(config))
                for number in range(reader.num_record_batches):
                    table.load(_owned_rows(reader.get_batch(number), owners, index))
            else:
                variables += _read_variables(reader, owners, index)
    for table in tables.values():
        store.adopt(table=table)
    for variable in variables:
        store.adopt(variable=variable)
    return sum(len(table) for table in tables.values())


def _write_table(table: EmbeddingTable, directory: Path, name: str) -> ShardFile:
    keys = table.keys()
    keys = keys[np.argsort(routing.buckets_of(keys), kind="stable")]
    dim, rows = table.config.dim, 0
    state_width = table.dump(keys[:0]).values.shape[1] - dim
    fields = [
        pa.field("bucket", pa.uint16()),
        pa.field("id", pa.int64()),
        pa.field("embedding", pa.list_(pa.float32(), dim)),
        pa.field("state", pa.list_(pa.float32(), state_width)),
        pa.field("updated_s", pa.uint32()),
    ]
    arrow_schema = pa.schema(fields, metadata={_META: json.dumps(_config_to_json(table.config))})
    path = directory / name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, arrow_schema) as writer:
        for part in sliced(keys, _ROWS_PER_SLICE):
            batch = table.dump(part)
            rows += batch.keys.size
            columns = [
                pa.array(routing.buckets_of(batch.keys).astype(np.uint16)),
                pa.array(batch.keys),
                _fixed_lists(batch.values[:, :dim]),
                _fixed_lists(batch.values[:, dim:]),
                pa.array(batch.updated_s),
            ]
            writer.write_batch(pa.record_batch(columns, schema=arrow_schema))
    sync(path)
    return ShardFile(name, "table", table.config.name, rows, path.stat().st_size, manifest.sha256_of(path))


def _owned_rows(batch: pa.RecordBatch, owners: NDArray[np.uint16], index: int) -> RowBatch:
    keys = batch.column("id").to_numpy()
    mine = owners[routing.buckets_of(keys)] == index
    parts = [_matrix(batch.column(name))[mine] for name in ("embedding", "state")]
    return RowBatch(keys[mine], np.concatenate(parts, axis=1), batch.column("updated_s").to_numpy()[mine])


def _write_variables(variables: list[Variable], directory: Path, name: str) -> ShardFile:
    values = [(variable.config, *variable.dump()) for variable in variables]
    columns = {
        "name": pa.array([config.name for config, _, _ in values], pa.string()),
        "dtype": pa.array([value.dtype.name for _, value, _ in values], pa.string()),
        "shape": pa.array([list(value.shape) for _, value, _ in values], pa.list_(pa.int64())),
        "value": pa.array([value.tobytes() for _, value, _ in values], pa.binary()),
        "state": pa.array([state.tobytes() for _, _, state in values], pa.binary()),
        "optimizer": pa.array([json.dumps(_kind_to_json(config.optimizer)) for config, _, _ in values], pa.string()),
    }
    batch = pa.record_batch(columns)
    path = directory / name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    sync(path)
    return ShardFile(name, "variables", "", len(values), path.stat().st_size, manifest.sha256_of(path))


def _read_variables(reader: Any, owners: NDArray[np.uint16], index: int) -> list[Variable]:
    variables = []
    for row in reader.read_all().to_pylist():
        if owners[routing.buckets_of(np.array([routing.key_of_name(row["name"])], np.int64))[0]] != index:
            continue
        value = np.frombuffer(row["value"], row["dtype"]).reshape(row["shape"])
        optimizer = _kind_from_json(json.loads(row["optimizer"]), schema.Optimizer)
        variable = Variable(VariableConfig(row["name"], value, optimizer))
        state = np.frombuffer(row["state"], np.float32)
        variable.load(value, state.reshape(row["shape"]) if state.size == value.size else state)
        variables.append(variable)
    return variables


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


def _config_to_json(config: TableConfig) -> dict[str, Any]:
    segments = [
        {
            "dim": segment.dim,
            "initializer": _kind_to_json(segment.initializer),
            "optimizer": _kind_to_json(segment.optimizer),
        }
        for segment in config.segments
    ]
    return {"name": config.name, "segments": segments}


def _config_from_json(content: dict[str, Any]) -> TableConfig:
    segments = tuple(
        Segment(
            segment["dim"],
            _kind_from_json(segment["initializer"], schema.Initializer),
            _kind_from_json(segment["optimizer"], schema.Optimizer),
        )
        for segment in content["segments"]
    )
    return TableConfig(content["name"], segments)


def _kind_to_json(value: Any) -> dict[str, Any] | None:
    return None if value is None else {"kind": type(value).__name__, **dataclasses.asdict(value)}


def _kind_from_json(content: dict[str, Any] | None, union: Any) -> Any:
    if content is None:
        return None
    kinds = {kind.__name__: kind for kind in get_args(union)}
    fields = dict(content)
    name = fields.pop("kind")
    if name not in kinds:
        raise CheckpointDamaged(f"unknown kind {name!r}; this version knows {sorted(kinds)}")
    return kinds[name](**fields)
