"""Saving a shard: what one ps holds, as files of a checkpoint.

Any Arrow reader opens the files; format.py lists them.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from megalith.checkpoint import arrow_files, filters, tables, variables
from megalith.checkpoint.format import (
    FileKind,
    shard_suffix,
    table_file_name,
    variables_file_name,
)
from megalith.checkpoint.holder import ShardHolder
from megalith.checkpoint.manifest import ShardFile
from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import SaveFailed


class SavedShard(NamedTuple):
    """What one server wrote: its files, and the names of the parts of large variables in them."""

    files: list[ShardFile]
    parts: list[str]


def save_shard(
    holder: ShardHolder, directory: Path, save_id: str, index: int, num_ps: int
) -> SavedShard:
    """Write this server's tables and variables; returns what was written.

    Whatever goes wrong, none of the files stays. That goes for a directory that was removed
    meanwhile too, because the save took too long or another ps failed.
    """
    suffix = shard_suffix(index, num_ps, save_id)
    with nothing_left_of(directory, suffix):
        saved = _write_files(holder, directory, suffix)
        check_there(directory, saved.files)
        return saved


@contextlib.contextmanager
def nothing_left_of(directory: Path, suffix: str) -> Iterator[None]:
    """Inside, files of a shard are written; if that fails, none of them stays."""
    try:
        yield
    except BaseException:
        for path in directory.glob(f"*-{suffix}"):
            with contextlib.suppress(OSError):  # what went wrong is said, not what came of it
                path.unlink()

        raise


def check_there(directory: Path, files: list[ShardFile]) -> None:
    """SaveFailed if a file is gone, with its directory."""
    for file in files:
        if not (directory / file.name).exists():
            raise SaveFailed(f"the save was given up: {directory} has lost {file.name}")


def _write_files(holder: ShardHolder, directory: Path, suffix: str) -> SavedShard:
    buckets = arrow_files.ranges_of(holder.buckets())
    files = []
    for number, table in enumerate(holder.tables()):
        files += _write_table(holder, table, number, directory, suffix)

    held = holder.variables()  # once: the parts that are named are those that are written
    copies = variables.copies_of(held)
    file = variables.write(copies, directory, variables_file_name(suffix))
    files.append(replace(file, buckets=buckets))
    parts = [variable.config.part_name for variable in held if variable.config.part]
    return SavedShard(files, parts)


def _write_table(
    holder: ShardHolder, table: EmbeddingTable, number: int, directory: Path, suffix: str
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
    rows = tables.write(table, config, directory, name_of(FileKind.TABLE))

    held = holder.buckets()
    about = []

    if isinstance(admission, CountingFilter):
        filter_name = name_of(FileKind.FILTER)
        about.append(filters.write_filter(admission, config.name, held, directory, filter_name))

    buckets = arrow_files.ranges_of(held)
    return [rows, *(replace(file, buckets=buckets) for file in about)]
