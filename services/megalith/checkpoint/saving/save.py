"""Saving a shard: what one ps holds, as files of a checkpoint.

Any Arrow reader opens the files; format.py lists them.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from megalith.checkpoint.files import applied as applied_files
from megalith.checkpoint.files import blobs, filters, tables, variables
from megalith.checkpoint.files.applied import AppliedWrites
from megalith.checkpoint.format import (
    FileKind,
    applied_file_name,
    shard_suffix,
    table_file_name,
    variables_file_name,
)
from megalith.checkpoint.holder import ShardHolder
from megalith.checkpoint.layout import arrow_files
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.pace import Pace, full_speed
from megalith.checkpoint.storage import object_folders
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.object_path import ObjectPath
from megalith.checkpoint.storage.staging import Staging, staging_for
from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import SaveFailed

# By table, the set of its delta log up to which its changes are in files
Sets = Mapping[str, int]


class SavedShard(NamedTuple):
    """What one server wrote.

    Its files, the names of the parts of large variables in them, and by table the layout of its
    rows.
    """

    files: list[ShardFile]
    parts: list[str]
    layouts: Mapping[str, str]


def save_shard(
    holder: ShardHolder,
    directory: Location,
    save_id: str,
    index: int,
    num_ps: int,
    sets: Sets | None = None,
    pace: Pace | None = None,
    *,
    dense_only: bool = False,
) -> SavedShard:
    """Write this server's tables, variables and blobs; returns what was written.

    `sets` is where the delta logs stood before: what the files say of the changes in them. Without
    a `pace` nobody trains meanwhile. If `dense_only`, the variables alone.

    Whatever goes wrong, none of the files stays. That goes for a directory that was removed
    meanwhile too, because the save took too long or another ps failed.
    """
    suffix = shard_suffix(index, num_ps, save_id)
    with nothing_left_of(directory, suffix):
        with staging_for(directory) as staging:
            if dense_only:
                file, parts = _write_variables(holder, staging, suffix)
                saved = SavedShard([file], parts, {})
            else:
                saved = _write_all(holder, staging, suffix, sets or {}, pace or full_speed())

        check_there(directory, saved.files)
        return saved


def _write_all(
    holder: ShardHolder, staging: Staging, suffix: str, sets: Sets, pace: Pace
) -> SavedShard:
    applied_before = holder.applied_writes()  # all of them are in every row that is read from here
    tables = holder.tables()  # once: the layouts that are said are those of the files
    files = _write_tables(holder, tables, staging, suffix, sets, pace)
    file, parts = _write_variables(holder, staging, suffix)
    files.append(file)
    files += _write_blobs(holder, staging, suffix)
    file = _write_applied(holder, applied_before, staging, suffix)
    files.append(file)
    layouts = {table.config.name: table.layout.signature for table in tables}
    return SavedShard(files, parts, layouts)


@contextlib.contextmanager
def nothing_left_of(directory: Location, suffix: str) -> Iterator[None]:
    """Inside, files of a shard are written; if that fails, none of them stays."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong is said, not what came of it
            for path in directory.glob(f"*-{suffix}"):
                path.unlink()

        raise


def check_there(directory: Location, files: list[ShardFile]) -> None:
    """SaveFailed if a file is gone, with its directory.

    An object store has no directory that could be gone: there it is the mark of the save.
    """
    if isinstance(directory, ObjectPath) and not object_folders.is_begun(directory):
        raise SaveFailed(f"the save was given up: {directory} is nobody's any more")

    for file in files:
        if not (directory / file.name).exists():
            raise SaveFailed(f"the save was given up: {directory} has lost {file.name}")


def _write_tables(
    holder: ShardHolder,
    tables: Sequence[EmbeddingTable],
    staging: Staging,
    suffix: str,
    sets: Sets,
    pace: Pace,
) -> list[ShardFile]:
    directory = staging.folder
    files = []
    for number, table in enumerate(tables):
        rows, *others = _write_table(holder, table, number, directory, suffix, pace)
        through = sets.get(rows.table, 0)
        of_table = [replace(rows, through=through), *others]
        staging.finished(file.name for file in of_table)
        files += of_table

    return files


def _write_variables(
    holder: ShardHolder, staging: Staging, suffix: str
) -> tuple[ShardFile, list[str]]:
    """The file of all variables, and the names of the parts in it."""
    buckets = arrow_files.ranges_of(holder.buckets())
    held = holder.variables()  # once: the parts that are named are those that are written
    copies = variables.copies_of(held)
    file = variables.write(copies, staging.folder, variables_file_name(suffix))
    staging.finished([file.name])
    parts = [variable.config.part_name for variable in held if variable.config.part]
    return replace(file, buckets=buckets), parts


def _write_blobs(holder: ShardHolder, staging: Staging, suffix: str) -> list[ShardFile]:
    buckets = arrow_files.ranges_of(holder.buckets())
    files = []
    for file in blobs.write(holder.blobs(), staging.folder, suffix):
        staging.finished([file.name])
        files.append(replace(file, buckets=buckets))

    return files


def _write_applied(
    holder: ShardHolder, before: AppliedWrites, staging: Staging, suffix: str
) -> ShardFile:
    """Which pushes are in the files, and of which that is not known."""
    with holder.cut():  # a push under way may have changed rows that are in the files
        after = holder.applied_writes()

    applied = applied_files.around_a_save(before, after)
    file = applied_files.write(applied, staging.folder, applied_file_name(suffix))
    staging.finished([file.name])
    buckets = arrow_files.ranges_of(holder.buckets())
    return replace(file, buckets=buckets)


def _write_table(
    holder: ShardHolder,
    table: EmbeddingTable,
    number: int,
    directory: Path,
    suffix: str,
    pace: Pace,
) -> list[ShardFile]:
    """The rows of a table; then its filter, if it has one.

    That comes after the rows: what was counted meanwhile is in it, if not in the rows, so that no
    id has to be seen more often after a restart than before.
    """

    def name_of(kind: FileKind) -> str:
        return table_file_name(kind, number, config.name, suffix)

    # Both once, before the rows: a filter that the table gets meanwhile would not fit what the file
    # of the rows says about it.
    config, admission = table.config_and_filter
    rows = tables.write(table, config, directory, name_of(FileKind.TABLE), pace)

    held = holder.buckets()
    about = []

    if isinstance(admission, CountingFilter):
        filter_name = name_of(FileKind.FILTER)
        about.append(filters.write_filter(admission, config.name, held, directory, filter_name))

    buckets = arrow_files.ranges_of(held)
    return [rows, *(replace(file, buckets=buckets) for file in about)]
