"""Saving an increment of a shard: what changed on one ps since the increment before it.

Training goes on while most of it is written. Rows that changed are written in rounds: the first has
all since the last increment, the second those that changed during the first, and so on. When a
round is small, writes are held up for the last one, and that moment is what the increment shows:
its rows, its variables and the pushes that it names belong together. How long writes wait therefore
depends on how much changes during a small round, not on how much changed since the last increment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from megalith.checkpoint import applied as applied_files
from megalith.checkpoint import arrow_files, dropped, save, variables
from megalith.checkpoint import tables as table_files
from megalith.checkpoint.applied import AppliedWrites
from megalith.checkpoint.format import (
    FileKind,
    applied_file_name,
    shard_suffix,
    table_file_name,
    variables_file_name,
)
from megalith.checkpoint.holder import ShardHolder
from megalith.checkpoint.manifest import ShardFile
from megalith.checkpoint.save import SavedShard
from megalith.checkpoint.tables import RowFile
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import Variable
from megalith.kernels.dtypes import F32, I64

_SMALL_ROUND = 4096  # ids that may change while writes are held up for the last round
_MOST_ROUNDS = 5  # then writes are held up however many they are

# By table, the set of its delta log up to which its changes are in files
Sets = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SavedIncrement:
    """What one server wrote, and up to which sets of its delta logs."""

    shard: SavedShard
    sets: Sets


def seal_all(holder: ShardHolder) -> Sets:
    """Where the delta logs stand: rows that are read from now on have all changes up to there."""
    return {table.config.name: table.changes.seal() for table in holder.tables()}


def save_increment(
    holder: ShardHolder, since: Sets, directory: Path, save_id: str, index: int, num_ps: int
) -> SavedIncrement:
    """Write what changed after the sets in `since`; of a table that is not in it, all changes.

    ChangesForgotten if a delta log does not reach back that far. Whatever goes wrong, none of the
    files stays.
    """
    suffix = shard_suffix(index, num_ps, save_id)
    with save.nothing_left_of(directory, suffix):
        written = _Increment(holder, since, directory, suffix).write()
        save.check_there(directory, written.shard.files)
        return written


@dataclass(slots=True)
class _Cut:
    """What is copied while writes are held up."""

    variables: list[Variable]
    copies: list[dict[str, Any]]
    applied: AppliedWrites


class _Increment:
    """One increment of one server."""

    def __init__(self, holder: ShardHolder, since: Sets, directory: Path, suffix: str) -> None:
        self._holder = holder
        self._since = since
        self._directory = directory
        self._suffix = suffix
        self._tables: dict[str, _TableChanges] = {}

    def write(self) -> SavedIncrement:
        try:
            for _ in range(_MOST_ROUNDS):
                self._open_new_tables()
                if self._write_round() <= _SMALL_ROUND:
                    break

            with self._holder.cut():
                self._open_new_tables()
                for table in self._tables.values():
                    table.take_last_round()

                held = self._holder.variables()
                cut = _Cut(held, variables.copies_of(held), self._holder.applied_writes())

            return self._finish(cut)
        finally:
            for table in self._tables.values():
                table.close()

    def _open_new_tables(self) -> None:
        for table in self._holder.tables():
            name = table.config.name
            if name not in self._tables:
                number = len(self._tables)
                since = self._since.get(name, table.changes.begin)
                self._tables[name] = _TableChanges(
                    table, since, number, self._directory, self._suffix
                )

    def _write_round(self) -> int:
        return sum(table.write_round() for table in self._tables.values())

    def _finish(self, cut: _Cut) -> SavedIncrement:
        buckets = arrow_files.ranges_of(self._holder.buckets())
        files = []
        sets = {}
        for name, table in self._tables.items():
            rows, gone = table.finish()
            files += [rows, replace(gone, buckets=buckets)]
            sets[name] = table.through

        name = variables_file_name(self._suffix)
        dense = variables.write(cut.copies, self._directory, name)
        name = applied_file_name(self._suffix)
        pushes = applied_files.write(cut.applied, self._directory, name)
        files += [replace(dense, buckets=buckets), replace(pushes, buckets=buckets)]

        parts = [variable.config.part_name for variable in cut.variables if variable.config.part]
        return SavedIncrement(SavedShard(files, parts), sets)


class ChangedRows(NamedTuple):
    """Rows with embedding and optimizer state side by side."""

    ids: I64
    rows: F32
    times: I64


class _TableChanges:
    """The changed rows of one table. `through` is the newest set whose ids were looked up."""

    def __init__(
        self, table: EmbeddingTable, since: int, number: int, directory: Path, suffix: str
    ) -> None:
        self._table = table
        self._config = table.config
        self._directory = directory
        self._dropped_name = table_file_name(FileKind.DROPPED, number, self._config.name, suffix)
        self._dropped = np.empty(0, np.int64)
        self._last: list[ChangedRows] = []
        self._held = 0
        self._data_time_s = 0
        self.through = since

        name = table_file_name(FileKind.TABLE, number, self._config.name, suffix)
        self._file = RowFile(self._config, table.layout, table.max_update_s, directory, name)
        self._file.__enter__()

    def close(self) -> None:
        self._file.__exit__()

    def write_round(self) -> int:
        """Write the rows that changed since the last round; how many ids that are."""
        ids = self._next_ids()
        for batch in self._look_up(ids):
            self._file.add(*batch)

        return ids.size

    def take_last_round(self) -> None:
        """Copy what has changed since. Writes are held up, so memory is all that it uses."""
        self._last = list(self._look_up(self._next_ids()))
        self._held = len(self._table)
        self._data_time_s = self._table.max_update_s

    def finish(self) -> tuple[ShardFile, ShardFile]:
        """The files of the rows and of the dropped ids."""
        for batch in self._last:
            self._file.add(*batch)

        self._last = []
        self.close()
        rows = replace(self._file.written(), held=self._held)
        gone = dropped.write(
            self._dropped,
            self._data_time_s,
            self._config.name,
            self._directory,
            self._dropped_name,
        )
        return rows, gone

    def _next_ids(self) -> I64:
        number = self._table.changes.seal()
        ids = self._table.changes.read(self.through)
        self.through = number
        return ids

    def _look_up(self, ids: I64) -> Iterator[ChangedRows]:
        """The rows of ids, all of which the caller takes. Those without a row count as dropped."""
        limit = table_files.rows_at_once(self._table.layout.width)
        gone = []
        for begin in range(0, ids.size, limit):
            some = ids[begin : begin + limit]
            entries = self._table.lookup_entry(some)
            has_row = entries.times >= 0
            gone.append(some[~has_row])
            if has_row.any():
                rows = np.concatenate([entries.values, entries.state], axis=1)
                yield ChangedRows(some[has_row], rows[has_row], entries.times[has_row])

        others = np.setdiff1d(self._dropped, ids, assume_unique=True)
        self._dropped = np.concatenate([others, *gone])
