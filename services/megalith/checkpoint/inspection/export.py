"""The rows of a checkpoint as Parquet or CSV, for programs that know neither Arrow nor Megalith.

    <out>/<table>.parquet   id, updated_s, segment_0, segment_1, ...   lists of floats
    <out>/<table>.csv       id, updated_s, segment_0_0, segment_0_1, ...   a column for each float

With the state, a column such as segment_0_norm follows for each part of the optimizer's state.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from megalith.checkpoint.directory import increments
from megalith.checkpoint.files.tables import RowBatch
from megalith.checkpoint.inspection import checkpoint_rows
from megalith.checkpoint.inspection import files as checked_files
from megalith.checkpoint.inspection.checkpoint_rows import TableRows
from megalith.checkpoint.inspection.progress import NoProgress, ProgressDisplay
from megalith.checkpoint.storage.location import Location
from megalith.engine.table.row_layout import RowLayout
from megalith.errors import InvalidRequest, UnknownTable
from megalith.kernels.dtypes import F32


class ExportFormat(StrEnum):
    """What a table becomes."""

    PARQUET = "parquet"
    CSV = "csv"


@dataclass(slots=True)
class Exported:
    """What was written: rows by file."""

    path: str
    step: int
    rows_by_file: dict[str, int] = field(default_factory=dict)


class _Column(NamedTuple):
    """Some floats of a row that get a column, or a column each, of their own."""

    name: str
    is_state: bool
    first: int
    width: int


def export(
    directory: Location,
    out: Path,
    kind: ExportFormat,
    tables: list[str] | None = None,
    *,
    with_state: bool = False,
    progress: ProgressDisplay | None = None,
) -> Exported:
    """Write tables of a checkpoint, all of them unless some are named, into the folder `out`.

    Files are checked before they are read, and no existing file is replaced. A file gets its name
    when it is complete.
    """
    progress = progress or NoProgress()
    chain = increments.read_chain(directory)
    rows_by_table = checkpoint_rows.tables_of(chain)

    for name in tables or ():
        if name not in rows_by_table:
            known = ", ".join(rows_by_table) or "none"
            raise UnknownTable(f"{directory} has no table {name!r}; it has {known}")

    wanted = {name: rows_by_table[name] for name in tables or rows_by_table}
    paths = _paths(out, list(wanted), kind)
    checked_files.check(chain, progress, wanted)

    out.mkdir(parents=True, exist_ok=True)
    result = Exported(str(out), chain.last.step)

    for name, rows in wanted.items():
        path = paths[name]
        progress.begin(f"exporting {name}", rows.bytes)

        written = _write(rows, path, kind, with_state, progress)
        result.rows_by_file[path.name] = written

    return result


def _paths(out: Path, tables: list[str], kind: ExportFormat) -> dict[str, Path]:
    """The file of each table; InvalidRequest if one is there already, or two would be the same."""
    paths: dict[str, Path] = {}
    for name in tables:
        readable = re.sub(r"[^A-Za-z0-9._-]", "-", name)
        path = out / f"{readable}.{kind}"
        if path in paths.values():
            raise InvalidRequest(
                f"two tables would be written to {path}; export them one by one, "
                "with --table and another --out for each"
            )

        if path.exists():
            raise InvalidRequest(f"{path} is there already; remove it, or give another --out")

        paths[name] = path

    return paths


def _write(
    rows: TableRows, path: Path, kind: ExportFormat, with_state: bool, progress: ProgressDisplay
) -> int:
    """Returns how many rows were written."""
    layout = RowLayout(rows.header.config)
    columns = _columns(layout, with_state)
    make = _lists if kind == ExportFormat.PARQUET else _floats
    schema = _record_batch(_no_rows(layout), columns, make).schema

    temporary = path.with_name(f"{path.name}-tmp-{secrets.token_hex(4)}")
    bytes_per_row = 4 * layout.width
    count = 0
    try:
        with ExitStack() as closing:
            writer = closing.enter_context(_writer(temporary, schema, kind))
            for batch in rows.batches():
                writer.write_batch(_record_batch(batch, columns, make))

                count += batch.ids.size
                progress.add(batch.ids.size * bytes_per_row)

        os.replace(temporary, path)
        return count
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _writer(path: Path, schema: pa.Schema, kind: ExportFormat) -> Any:
    if kind == ExportFormat.PARQUET:
        return pyarrow.parquet.ParquetWriter(str(path), schema, compression="zstd")

    return pyarrow.csv.CSVWriter(str(path), schema)


def _columns(layout: RowLayout, with_state: bool) -> list[_Column]:
    columns = []
    segments = zip(layout.weight_offsets, layout.dims, strict=True)

    for number, (first, width) in enumerate(segments):
        weights = _Column(f"segment_{number}", False, first, width)
        columns.append(weights)

    if not with_state:
        return columns

    for about in layout.state_fields:
        name = f"segment_{about['segment']}_{about['name']}"
        first = int(about["first"])
        width = int(about["width"])
        columns.append(_Column(name, True, first, width))

    return columns


def _no_rows(layout: RowLayout) -> RowBatch:
    return RowBatch(
        np.empty(0, np.int64),
        np.empty((0, layout.dim), np.float32),
        np.empty((0, layout.width - layout.dim), np.float32),
        np.empty(0, np.int64),
    )


def _record_batch(batch: RowBatch, columns: list[_Column], make: Any) -> pa.RecordBatch:
    arrays = {
        "id": pa.array(batch.ids),
        "updated_s": pa.array(batch.times),
    }

    for column in columns:
        values = batch.states if column.is_state else batch.embeddings
        end = column.first + column.width
        part = values[:, column.first : end]
        arrays.update(make(column.name, part))

    return pa.record_batch(arrays)


def _lists(name: str, values: F32) -> Iterator[tuple[str, pa.Array]]:
    """One column of lists, or of floats where a list would have one."""
    width = values.shape[1]
    flat = np.ascontiguousarray(values).reshape(-1)
    floats = pa.array(flat)

    if width == 1:
        yield name, floats
    else:
        yield name, pa.FixedSizeListArray.from_arrays(floats, width)


def _floats(name: str, values: F32) -> Iterator[tuple[str, pa.Array]]:
    """A column for each float."""
    for number in range(values.shape[1]):
        column = np.ascontiguousarray(values[:, number])
        yield f"{name}_{number}", pa.array(column)
