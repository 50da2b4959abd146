"""Which columns have no value at all in a file, as far as that is known without reading its rows.

The statistics of Parquet say it, and so does the type of a column: null, which some writers choose
if all of it is missing. Of text it is known for files of one block.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet

from megalith.errors import BadData
from megalith.tasks.input.blocks import IndexedFile, has_no_values, schema_of
from megalith.tasks.input.files import FileFormat
from megalith.tasks.input.index import DataIndex


def empty_columns(index: DataIndex, names: Sequence[str]) -> list[str]:
    """A sentence for each of these columns that has no value in a file."""
    files = [file for file in index.files if sum(file.rows)]
    paths_by_column: dict[str, list[str]] = {name: [] for name in names}
    for file in files:
        for name in _empty_in(file, names):
            paths_by_column[name].append(file.path)

    lines = []
    for name, paths in paths_by_column.items():
        if not paths:
            continue

        where = paths[0]
        if len(paths) > 1:
            where = f"{len(paths):,} of {len(files):,} files, the first is {paths[0]}"

        lines.append(
            f"column {name} has no value in any row of {where}: the model learns nothing from it "
            "there"
        )

    return lines


def _empty_in(file: IndexedFile, names: Sequence[str]) -> list[str]:
    if file.format is FileFormat.PARQUET:
        return _empty_in_parquet(file, names)

    num_blocks = sum(1 for rows in file.rows if rows)
    if not file.is_text or num_blocks > 1:
        return []

    schema = schema_of(file)
    return [name for name in names if name in schema.names and has_no_values(schema.field(name))]


def _empty_in_parquet(file: IndexedFile, names: Sequence[str]) -> list[str]:
    try:
        footer = pa.parquet.read_metadata(file.path)
    except (OSError, pa.ArrowException) as error:
        raise BadData(f"{file.path} cannot be read: {error}") from error

    schema = footer.schema.to_arrow_schema()
    leaves = [footer.schema.column(number).path for number in range(footer.num_columns)]
    groups = [number for number, rows in enumerate(file.rows) if rows]
    found = []
    for name in names:
        if name not in schema.names:
            continue

        its_leaves = [
            number
            for number, path in enumerate(leaves)
            if path == name or path.startswith(f"{name}.")
        ]
        is_null = pa.types.is_null(schema.field(name).type)
        if is_null or (
            its_leaves and all(_has_only_nulls(footer, group, its_leaves) for group in groups)
        ):
            found.append(name)

    return found


def _has_only_nulls(footer: pa.parquet.FileMetaData, group: int, leaves: Sequence[int]) -> bool:
    """Whether the statistics of a row group say so. A list that is empty has no value either."""
    row_group = footer.row_group(group)
    for leaf in leaves:
        column = row_group.column(leaf)
        statistics = column.statistics
        if statistics is None or not statistics.has_null_count:
            return False
        if statistics.null_count < column.num_values:
            return False

    return True
