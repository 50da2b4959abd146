"""Saving a shard: what one ps holds, as files of a checkpoint.

Any Arrow reader opens the files; format.py lists them.
"""

import contextlib
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
    try:
        saved = _write_files(holder, directory, suffix)
        for file in saved.files:
            if not (directory / file.name).exists():
                raise SaveFailed(f"the save was given up: {directory} has lost {file.name}")
    except BaseException:
        for path in directory.glob(f"*-{suffix}"):
            with contextlib.suppress(OSError):  # what went wrong is said, not what came of it
                path.unlink()

        raise

    return saved


def _write_files(holder: ShardHolder, directory: Path, suffix: str) -> SavedShard:
    buckets = arrow_files.ranges_of(holder.buckets())
    files = []
    for number, table in enumerate(holder.tables()):
        files += _write_table(holder, table, number, directory, suffix)

    held = holder.variables()  # once: the parts that are named are those that are written
    file = variables.write(held, directory, variables_file_name(suffix))
    files.append(replace(file, buckets=buckets))
    parts = [variable.config.part_name for variable in held if variable.config.part]
    return SavedShard(files, parts)


def _write_table(
    holder: ShardHolder, table: EmbeddingTable, number: int, directory: Path, suffix: str
) -> list[ShardFile]:
    """The rows of a table; then its touched ids and its filter, as far as it has them.

    Those come after the rows: what was counted or touched meanwhile is in them, if not in the rows,
    so that no id has to be seen more often after a restart than before.
    """

    def name_of(kind: FileKind) -> str:
        return table_file_name(kind, number, config.name, suffix)

    # Both once, before the rows: a filter that the table gets meanwhile would not fit what the file
    # of the rows says about it.
    config, admission = table.config_and_filter
    rows = tables.write(table, config, directory, name_of(FileKind.TABLE))

    held = holder.buckets()
    about = []

    if table.touched is not None:
        forgotten = table.stats().touched_overflow
        touched_name = name_of(FileKind.TOUCHED)
        about.append(
            filters.write_touched(table.touched, forgotten, config.name, directory, touched_name)
        )

    if isinstance(admission, CountingFilter):
        filter_name = name_of(FileKind.FILTER)
        about.append(filters.write_filter(admission, config.name, held, directory, filter_name))

    buckets = arrow_files.ranges_of(held)
    return [rows, *(replace(file, buckets=buckets) for file in about)]
