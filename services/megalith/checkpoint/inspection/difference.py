"""What differs between two checkpoints: tables, rows, variables and blobs.

Rows are compared bucket by bucket: a pass reads both checkpoints and keeps the rows of as many
buckets as fit its memory. Equal means equal in every bit, so a row with NaN equals its copy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.checkpoint.directory import increments
from megalith.checkpoint.files.tables import RowBatch
from megalith.checkpoint.files.variables import SavedVariable
from megalith.checkpoint.inspection import checkpoint_rows
from megalith.checkpoint.inspection import files as checked_files
from megalith.checkpoint.inspection.blobs import digests_of
from megalith.checkpoint.inspection.checkpoint_rows import (
    ROWS_IN_MEMORY,
    SortedRows,
    TableRows,
)
from megalith.checkpoint.inspection.progress import NoProgress, ProgressDisplay
from megalith.checkpoint.inspection.variables import variables_of
from megalith.checkpoint.layout import schema_json
from megalith.checkpoint.storage.location import Location
from megalith.engine.table.row_layout import RowLayout
from megalith.kernels.dtypes import F32, I64, Bools

_AT_ONCE = 1 << 16  # rows that are compared at a time
_LARGEST = 5


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting of a table that is not the same, for example `segments.0.optimizer.beta1`."""

    setting: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class RowChange:
    """How far the embedding of a row moved, as a Euclidean distance."""

    id: int
    distance: float


@dataclass(slots=True)
class TableDifference:
    """How a table differs. `only_in_a` and `only_in_b` count rows.

    `changed` counts rows of both whose embedding or optimizer state differs, `redated` those that
    only have another time of their last update. With `is_comparable` False the table's row layout
    differs, and only ids were compared.
    """

    table: str
    rows_a: int = 0
    rows_b: int = 0
    only_in_a: int = 0
    only_in_b: int = 0
    changed: int = 0
    redated: int = 0
    equal: int = 0
    is_comparable: bool = True
    settings: list[SettingChange] = field(default_factory=list)
    largest: list[RowChange] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether both have the same rows and settings."""
        return self.equal == self.rows_a == self.rows_b and not self.settings


@dataclass(frozen=True, slots=True)
class VariableDifference:
    """How a variable differs, in words, and how far its farthest element moved."""

    variable: str
    what: str
    largest: float | None = None


@dataclass(frozen=True, slots=True)
class BlobDifference:
    """How a blob differs, in words."""

    blob: str
    what: str


@dataclass(slots=True)
class Difference:
    """What differs between two checkpoints.

    Tables, variables and blobs that are equal are counted.
    """

    a: str
    b: str
    step_a: int
    step_b: int
    tables_only_in_a: dict[str, int] = field(default_factory=dict)  # rows by table
    tables_only_in_b: dict[str, int] = field(default_factory=dict)
    tables: list[TableDifference] = field(default_factory=list)
    variables: list[VariableDifference] = field(default_factory=list)
    equal_variables: int = 0
    blobs: list[BlobDifference] = field(default_factory=list)
    equal_blobs: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same model."""
        if self.tables_only_in_a or self.tables_only_in_b:
            return False

        if self.variables or self.blobs:
            return False

        return all(table.is_equal for table in self.tables)


def compare(
    a: Location,
    b: Location,
    progress: ProgressDisplay | None = None,
    memory_bytes: int = ROWS_IN_MEMORY,
) -> Difference:
    """What differs between the checkpoints at two paths, after a check of their files.

    `memory_bytes` bounds the rows that it keeps at a time.
    """
    progress = progress or NoProgress()
    chain_a = increments.read_chain(a)
    chain_b = increments.read_chain(b)
    checked_files.check(chain_a, progress)
    checked_files.check(chain_b, progress)

    result = Difference(
        str(chain_a),
        str(chain_b),
        chain_a.last.step,
        chain_b.last.step,
    )

    tables_a = checkpoint_rows.tables_of(chain_a)
    tables_b = checkpoint_rows.tables_of(chain_b)

    for name in sorted(tables_a.keys() | tables_b.keys()):
        if name not in tables_b:
            result.tables_only_in_a[name] = tables_a[name].count()
        elif name not in tables_a:
            result.tables_only_in_b[name] = tables_b[name].count()
        else:
            difference = _compare_tables(
                tables_a[name],
                tables_b[name],
                progress,
                memory_bytes,
            )
            result.tables.append(difference)

    variables_a = variables_of(chain_a)
    variables_b = variables_of(chain_b)
    _compare_variables(variables_a, variables_b, result)

    blobs_a = digests_of(chain_a)
    blobs_b = digests_of(chain_b)
    _compare_blobs(blobs_a, blobs_b, result)
    return result


# --- tables ---


def _compare_tables(
    a: TableRows, b: TableRows, progress: ProgressDisplay, memory_bytes: int
) -> TableDifference:
    config_a = a.header.config
    config_b = b.header.config
    settings_a = schema_json.to_json(config_a)
    settings_b = schema_json.to_json(config_b)
    layout_a = RowLayout(config_a)
    layout_b = RowLayout(config_b)

    result = TableDifference(a.name)
    result.settings = _changed_settings(settings_a, settings_b)
    result.is_comparable = layout_a.signature == layout_b.signature

    num_bytes = a.bytes + b.bytes
    passes = checkpoint_rows.ranges(num_bytes, memory_bytes)
    progress.begin(f"comparing table {a.name}", len(passes) * num_bytes)

    for first, end in passes:
        rows_a = a.of_buckets(first, end)
        progress.add(a.bytes)

        rows_b = b.of_buckets(first, end)
        progress.add(b.bytes)

        _compare_rows(rows_a, rows_b, result)

    return result


def _compare_rows(a: SortedRows, b: SortedRows, result: TableDifference) -> None:
    """Add the rows of some buckets to a table's counts."""
    places = np.searchsorted(b.ids, a.ids)
    is_in_both = np.zeros(a.ids.size, np.bool_)
    if b.ids.size:
        last = b.ids.size - 1
        found = b.ids[np.minimum(places, last)]  # an id behind the last one has no place in b
        is_in_both = found == a.ids

    num_common = int(np.count_nonzero(is_in_both))

    num_a = a.ids.size
    result.rows_a += num_a
    result.only_in_a += num_a - num_common

    num_b = b.ids.size
    result.rows_b += num_b
    result.only_in_b += num_b - num_common

    if not result.is_comparable:
        return

    common_a = a.order[is_in_both]
    common_b = b.order[places[is_in_both]]

    for start in range(0, num_common, _AT_ONCE):
        end = start + _AT_ONCE
        some_a = common_a[start:end]
        some_b = common_b[start:end]
        _compare_common(a.rows, some_a, b.rows, some_b, result)


def _compare_common(
    a: RowBatch, rows_a: I64, b: RowBatch, rows_b: I64, result: TableDifference
) -> None:
    before = a.embeddings[rows_a]
    after = b.embeddings[rows_b]
    is_changed = _differ(before, after)
    is_changed |= _differ(a.states[rows_a], b.states[rows_b])

    is_redated = a.times[rows_a] != b.times[rows_b]
    is_redated &= ~is_changed

    num_changed = int(np.count_nonzero(is_changed))
    num_redated = int(np.count_nonzero(is_redated))

    result.changed += num_changed
    result.redated += num_redated
    result.equal += rows_a.size - num_changed - num_redated

    changed = np.flatnonzero(is_changed)
    moved = after[changed].astype(np.float64)
    moved -= before[changed]

    squares = np.square(moved)
    distances = np.sqrt(squares.sum(axis=1))
    distances[np.isnan(distances)] = np.inf  # a row that became NaN is the first to look at

    farthest = np.argsort(-distances, kind="stable")[:_LARGEST]
    far = distances[farthest].tolist()
    largest = changed[farthest]

    rows_of_largest = rows_a[largest]
    ids = a.ids[rows_of_largest].tolist()

    for key, distance in zip(ids, far, strict=True):
        if distance > 0:  # otherwise only the optimizer's state has changed
            result.largest.append(RowChange(key, distance))

    result.largest.sort(key=lambda change: -change.distance)
    del result.largest[_LARGEST:]


def _differ(a: F32, b: F32) -> Bools:
    """Which rows of two matrices differ in a bit."""
    bits_a = a.view(np.uint32)
    bits_b = b.view(np.uint32)
    differs = bits_a != bits_b

    is_different: Bools = differs.any(axis=1)
    return is_different


def _changed_settings(a: Any, b: Any) -> list[SettingChange]:
    flat_a = dict(_flat(a, ""))
    flat_b = dict(_flat(b, ""))
    changes = []

    for setting in sorted(flat_a.keys() | flat_b.keys()):
        before = flat_a.get(setting)
        after = flat_b.get(setting)
        if before != after:
            changes.append(SettingChange(setting, before, after))

    return changes


def _flat(content: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The leaves of JSON, by the path to them: segments.0.dim."""
    if isinstance(content, Mapping):
        items: Iterator[tuple[Any, Any]] = iter(content.items())
    elif isinstance(content, list):
        items = iter(enumerate(content))
    else:
        yield path, content
        return

    for key, value in items:
        path_of_value = f"{path}.{key}" if path else str(key)
        yield from _flat(value, path_of_value)


# --- variables ---


def _compare_variables(
    a: dict[str, SavedVariable], b: dict[str, SavedVariable], result: Difference
) -> None:
    for name in sorted(a.keys() | b.keys()):
        if name not in b:
            result.variables.append(VariableDifference(name, "only in A"))
        elif name not in a:
            result.variables.append(VariableDifference(name, "only in B"))
        else:
            difference = _compare_variable(name, a[name], b[name])

            if difference is None:
                result.equal_variables += 1
            else:
                result.variables.append(difference)


def _compare_variable(name: str, a: SavedVariable, b: SavedVariable) -> VariableDifference | None:
    """How two variables differ; None if they are equal."""
    kind_a = f"{a.value.dtype}{list(a.value.shape)}"
    kind_b = f"{b.value.dtype}{list(b.value.shape)}"
    if kind_a != kind_b:
        return VariableDifference(name, f"{kind_a} became {kind_b}")

    if a.value.tobytes() != b.value.tobytes():
        moved = b.value.astype(np.float64) - a.value
        farthest = float(np.abs(moved).max())
        return VariableDifference(name, "changed", farthest)

    if a.optimizer != b.optimizer or a.schedule != b.schedule:
        return VariableDifference(name, "equal, with other settings of its optimizer")

    if _bytes_of(a.state) != _bytes_of(b.state):
        return VariableDifference(name, "equal, with another optimizer state")

    return None


def _bytes_of(state: Mapping[str, NDArray[Any]]) -> dict[str, bytes]:
    content = {}
    for name, array in state.items():
        content[name] = array.tobytes()

    return content


# --- blobs ---


def _compare_blobs(a: Mapping[str, str], b: Mapping[str, str], result: Difference) -> None:
    """By the digests of their data."""
    for name in sorted(a.keys() | b.keys()):
        if name not in b:
            result.blobs.append(BlobDifference(name, "only in A"))
        elif name not in a:
            result.blobs.append(BlobDifference(name, "only in B"))
        elif a[name] != b[name]:
            result.blobs.append(BlobDifference(name, "changed"))
        else:
            result.equal_blobs += 1
