"""The file of a ps's variables in a checkpoint, and how parts are joined and split anew.

One row per variable or part of one: name, part, parts, first_row, dtype, shape and value
(little-endian bytes) of what this ps held, state (by field: bytes of float32, of int64 where the
name ends in _step), optimizer and schedule (JSON).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files, schema_json
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.starting.choices import EVERYTHING, RestoreChoices
from megalith.engine.variable.variable import Variable
from megalith.errors import CheckpointDamaged
from megalith.schema import DenseOptimizer, Part, Schedule, VariableConfig
from megalith.schema.variable_parts import num_parts
from megalith.wire import routing

_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("part", pa.int32()),
        pa.field("parts", pa.int32()),
        pa.field("first_row", pa.int64()),
        pa.field("dtype", pa.string()),
        pa.field("shape", pa.list_(pa.int64())),
        pa.field("value", pa.large_binary()),
        pa.field("state", pa.map_(pa.string(), pa.large_binary())),
        pa.field("optimizer", pa.string()),
        pa.field("schedule", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """A variable, or a part of one, as a file holds it."""

    name: str
    part: int
    parts: int
    optimizer: DenseOptimizer | None
    schedule: Schedule | None
    value: NDArray[Any]
    state: Mapping[str, NDArray[Any]]


def whole(variable: Variable) -> SavedVariable:
    """A variable that is held in one piece, as of now."""
    config = variable.config
    value, state = variable.dump()
    return SavedVariable(config.name, 0, 1, config.optimizer, config.schedule, value, state)


def copies_of(variables: Iterable[Variable]) -> list[dict[str, Any]]:
    """What a file says of each, as of now.

    Values are arrays: an increment holds up writes for this, so that nothing is copied twice.
    """
    return [_row(variable) for variable in variables]


def write(rows: list[dict[str, Any]], directory: Path, name: str) -> ShardFile:
    """Write one file of what `copies_of` gave; returns what was written."""
    path = directory / name

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        for row in rows:
            batch = pa.RecordBatch.from_pylist([_in_bytes(row)], schema=_SCHEMA)
            writer.write_batch(batch)

    return arrow_files.written(path, FileKind.VARIABLES, "", len(rows))


def read(
    reader: Any,
    file: ShardFile,
    owners: NDArray[np.uint16],
    index: int,
    choices: RestoreChoices = EVERYTHING,
) -> list[SavedVariable]:
    """What one file has of the variables of ps `index`, and perhaps of other large ones.

    They have the names that they get.
    """
    new_names = choices.new_names
    saved = []
    rows = 0

    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        rows += batch.num_rows

        # What the variables are is read first: values of others would take memory for nothing.
        about = batch.select(["name", "parts", "dtype", "shape"])
        for row, description in enumerate(about.to_pylist()):
            old = description["name"]
            description["name"] = new_names.get(old, old)
            if choices.takes_variable(old) and _may_be_held(description, owners, index):
                (whole_row,) = batch.slice(row, 1).to_pylist()
                saved.append(_saved({**whole_row, "name": description["name"]}))

    if rows != file.rows:
        raise CheckpointDamaged(f"{file.name} has {rows} variables, the manifest says {file.rows}")

    return saved


def read_all(reader: Any) -> Iterator[SavedVariable]:
    """Every variable, and part of one, of a file."""
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        for row in batch.to_pylist():
            yield _saved(row)


def _may_be_held(row: Mapping[str, Any], owners: NDArray[np.uint16], index: int) -> bool:
    """Whether ps `index` may hold some of the variable.

    Of one in parts, whose whole is not known here, it may.
    """
    num_ps = int(owners.max()) + 1
    item_bytes = np.dtype(row["dtype"]).itemsize
    parts_now = num_parts(row["shape"], item_bytes, num_ps)
    if row["parts"] > 1 or parts_now > 1:
        return True

    owner = routing.part_owner(owners, num_ps, row["name"], 0)
    return owner == index


def owned(saved: Iterable[SavedVariable], owners: NDArray[np.uint16], index: int) -> list[Variable]:
    """The variables and parts that ps `index` holds, out of the files of any number of servers."""
    num_ps = int(owners.max()) + 1
    variables = []

    for whole in joined(saved):
        name = whole.name
        # What it held is loaded, not given as its initial value: that must be finite, which an old
        # file may not be.
        initial = np.zeros_like(whole.value)
        config = VariableConfig(name, initial, whole.optimizer, whole.schedule)

        for piece in config.split(num_ps):
            part = piece.part
            number = part.index if part else 0
            owner = routing.part_owner(owners, num_ps, name, number)
            if owner != index:
                continue

            value = _rows(whole.value, part)
            state = {}
            for field, array in whole.state.items():
                state[field] = _rows(array, part)

            variable = Variable(piece)
            variable.load(value, state)
            variables.append(variable)

    return variables


def joined(saved: Iterable[SavedVariable]) -> Iterator[SavedVariable]:
    """Whole variables, out of the files of any number of servers."""
    by_name: dict[str, list[SavedVariable]] = {}
    for each in saved:
        pieces = by_name.setdefault(each.name, [])
        pieces.append(each)

    for name, pieces in by_name.items():
        in_order = sorted(pieces, key=lambda each: each.part)
        yield _joined(name, in_order)


def _joined(name: str, pieces: list[SavedVariable]) -> SavedVariable:
    """One piece for the whole.

    What a variable has once, such as adam's powers, is taken from the first part.
    """
    first = pieces[0]
    found = [piece.part for piece in pieces]
    expected = list(range(first.parts))
    if found != expected:
        raise CheckpointDamaged(f"variable {name}: parts {found} of {first.parts} are in the files")

    if first.parts == 1:
        return first

    state = {}

    for field, array in first.state.items():
        if array.ndim:
            array = np.concatenate([piece.state[field] for piece in pieces])

        state[field] = array

    value = np.concatenate([piece.value for piece in pieces])
    return SavedVariable(name, 0, 1, first.optimizer, first.schedule, value, state)


def _rows(array: NDArray[Any], part: Part | None) -> NDArray[Any]:
    """Those of a part; what a variable has once is in every part."""
    if part is None or array.ndim == 0:
        return array

    return array[part.start : part.stop]


def _row(variable: Variable) -> dict[str, Any]:
    config = variable.config
    part = config.part
    value, state = variable.dump()
    return {
        "name": config.name,
        "part": part.index if part else 0,
        "parts": part.count if part else 1,
        "first_row": part.start if part else 0,
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "value": value,
        "state": state,
        "optimizer": json.dumps(schema_json.to_json(config.optimizer)),
        "schedule": json.dumps(schema_json.to_json(config.schedule)),
    }


def _in_bytes(row: Mapping[str, Any]) -> dict[str, Any]:
    """What `_row` has said of a variable, as its columns hold it."""
    state = []
    for name, array in row["state"].items():
        state.append((name, array.tobytes()))

    value = row["value"].tobytes()
    return {**row, "value": value, "state": state}


def _saved(row: Mapping[str, Any]) -> SavedVariable:
    optimizer = schema_json.from_json(json.loads(row["optimizer"]))
    schedule = schema_json.from_json(json.loads(row["schedule"]))
    value = np.frombuffer(row["value"], row["dtype"]).reshape(row["shape"])

    # Shapes of fields follow from the value and the optimizer.
    config = VariableConfig(row["name"], np.zeros_like(value), optimizer)
    _, fields = Variable(config).dump()
    state = {}
    for name, data in row["state"]:
        field = fields[name]
        state[name] = np.frombuffer(data, field.dtype).reshape(field.shape)

    return SavedVariable(
        name=row["name"],
        part=row["part"],
        parts=row["parts"],
        optimizer=optimizer,
        schedule=schedule,
        value=value,
        state=state,
    )
