"""Saving an increment of a shard: what changed on one ps since the increment before it.

Training goes on while most of it is written. Rows that changed are written in rounds: the first has
all since the last increment, the second those that changed during the first, and so on. When a
round is small, writes are held up for the last one, and that moment is what the increment shows:
its rows, its variables, its blobs and the pushes that it names belong together. How long writes
wait therefore depends on how much changes during a small round, not on how much changed since the
last increment.

Admission filters are copied whole after that moment. So they may have counted a little more than
the rows show, and never less.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from megalith.checkpoint.files import applied as applied_files
from megalith.checkpoint.files import blobs, dropped, filters, variables
from megalith.checkpoint.files.applied import AppliedWrites
from megalith.checkpoint.files.row_file import RowFile
from megalith.checkpoint.files.row_groups import rows_at_once
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
from megalith.checkpoint.saving import save
from megalith.checkpoint.saving.save import SavedShard, Sets
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.staging import staging_for
from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.variable.variable import Variable
from megalith.errors import ChangesForgotten, ChangesNotNoted
from megalith.kernels.dtypes import F32, I64, Bools

_SMALL_ROUND = 4096  # ids that may change while writes are held up for the last round
_MOST_ROUNDS = 5  # then writes are held up however many they are


@dataclass(frozen=True, slots=True)
class SavedIncrement:
    """What one server wrote, and up to which sets of its delta logs."""

    shard: SavedShard
    sets: Sets


def seal_all(holder: ShardHolder) -> Sets:
    """Where the delta logs stand: rows that are read from now on have all changes up to there."""
    return {table.config.name: table.changes.seal() for table in holder.tables()}


def save_increment(
    holder: ShardHolder,
    since: Sets,
    directory: Location,
    save_id: str,
    index: int,
    num_ps: int,
    check: Callable[[], None] = lambda: None,
) -> SavedIncrement:
    """Write what changed after the sets in `since`; of a table that is not in it, all changes.

    ChangesForgotten if a delta log does not reach back that far, or if a table is dropped
    meanwhile; ChangesNotNoted if a table has none, as the next full save would not change that.
    `check` is called at the end: it raises if nobody wants the increment any more. Whatever goes
    wrong, none of the files stays.
    """
    suffix = shard_suffix(index, num_ps, save_id)
    with save.nothing_left_of(directory, suffix):
        with staging_for(directory) as staging:
            written = _Increment(holder, since, staging.folder, suffix).write()
            staging.finished(file.name for file in written.shard.files)

        save.check_there(directory, written.shard.files)
        check()
        return written


@dataclass(slots=True)
class _Cut:
    """What is copied while writes are held up."""

    variables: list[Variable]
    copies: list[dict[str, Any]]
    blobs: dict[str, bytes]
    applied: AppliedWrites


class _Increment:
    """One increment of one server."""

    def __init__(self, holder: ShardHolder, since: Sets, directory: Path, suffix: str) -> None:
        self._holder = holder
        self._since = since
        self._directory = directory
        self._suffix = suffix
        self._tables: dict[str, _TableChanges] = {}
        self._opened = ExitStack()

    def write(self) -> SavedIncrement:
        with self._opened:
            for _ in range(_MOST_ROUNDS):
                self._open_new_tables()
                if self._write_round() <= _SMALL_ROUND:
                    break

            with self._holder.cut():
                self._open_new_tables()
                for table in self._tables.values():
                    table.take_last_round()

                held = self._holder.variables()
                cut = _Cut(
                    held,
                    variables.copies_of(held),
                    self._holder.blobs(),
                    self._holder.applied_writes(),
                )

            for table in self._tables.values():
                table.write_last_round()

        return self._finish(cut)

    def _open_new_tables(self) -> None:
        """Note the tables that are new; ChangesForgotten if one that was noted is another by now.

        The pushes that the increment names would be of the table that took its place.
        """
        held = self._holder.tables()
        by_name = {table.config.name: table for table in held}
        for name, changes in self._tables.items():
            if by_name.get(name) is not changes.table:
                raise ChangesForgotten(
                    f"table {name} was dropped, or made anew, while the increment was written; "
                    "a full save is needed"
                )

        for table in held:
            name = table.config.name
            if not table.changes.is_on:
                raise ChangesNotNoted(
                    f"table {name} has touched_capacity 0, so nobody knows which of its rows "
                    "change, and no increment can be made; full saves go on as planned; give the "
                    "table a touched_capacity, or leave out increments: --increment-every-s 0"
                )

            if name not in self._tables:
                number = len(self._tables)
                since = self._since.get(name, table.changes.begin)
                changes = _TableChanges(table, since, number, self._directory, self._suffix)
                self._tables[name] = changes
                self._opened.enter_context(changes.file)

    def _write_round(self) -> int:
        return sum(table.write_round() for table in self._tables.values())

    def _finish(self, cut: _Cut) -> SavedIncrement:
        held = self._holder.buckets()
        buckets = arrow_files.ranges_of(held)
        files = []
        sets = {}

        for name, table in self._tables.items():
            rows, *about = table.finish(held)
            files += [rows, *(replace(file, buckets=buckets) for file in about)]
            sets[name] = table.through

        name = variables_file_name(self._suffix)
        dense = variables.write(cut.copies, self._directory, name)
        name = applied_file_name(self._suffix)
        pushes = applied_files.write(cut.applied, self._directory, name)
        files += [replace(dense, buckets=buckets), replace(pushes, buckets=buckets)]

        for file in blobs.write(cut.blobs, self._directory, self._suffix):
            files.append(replace(file, buckets=buckets))

        parts = [variable.config.part_name for variable in cut.variables if variable.config.part]
        layouts = {name: table.table.layout.signature for name, table in self._tables.items()}
        return SavedIncrement(SavedShard(files, parts, layouts), sets)


class ChangedRows(NamedTuple):
    """Rows with embedding and optimizer state side by side."""

    ids: I64
    rows: F32
    times: I64


class _TableChanges:
    """The changed rows of one table, which is `table`.

    `through` is the newest set whose ids were looked up, and `file` is where their rows go.
    """

    def __init__(
        self, table: EmbeddingTable, since: int, number: int, directory: Path, suffix: str
    ) -> None:
        self.table = table
        # Both at once: a filter that the table gets meanwhile would not fit what the file of the
        # rows says about it.
        self._config, self._admission = table.config_and_filter

        self._directory = directory
        self._dropped_name = table_file_name(FileKind.DROPPED, number, self._config.name, suffix)
        self._filter_name = table_file_name(FileKind.FILTER, number, self._config.name, suffix)

        self._dropped = np.empty(0, np.int64)
        self._last: list[ChangedRows] = []
        self._held = 0
        self._data_time_s = 0

        self.through = since

        name = table_file_name(FileKind.TABLE, number, self._config.name, suffix)
        self.file = RowFile(self._config, table.layout, table.max_update_s, directory, name)

    def write_round(self) -> int:
        """Write the rows that changed since the last round; how many ids that are."""
        ids = self._next_ids()
        for batch in self._look_up(ids):
            self.file.add(*batch)

        self.file.flush()  # an id of this round may come in the next one too
        return ids.size

    def take_last_round(self) -> None:
        """Copy what has changed since. Writes are held up, so memory is all that it uses."""
        self._last = list(self._look_up(self._next_ids()))
        self._held = len(self.table)
        self._data_time_s = self.table.max_update_s

    def write_last_round(self) -> None:
        for batch in self._last:
            self.file.add(*batch)

        self.file.flush()  # its memory: the last rounds of other tables come after it
        self._last = []

    def finish(self, buckets: Bools) -> list[ShardFile]:
        """The files of the rows, of the dropped ids and of the admission filter, if there is one.

        That of the rows is closed. `buckets` are those of this server.
        """
        rows = replace(self.file.written(), held=self._held, through=self.through)
        gone = dropped.write(
            self._dropped,
            self._data_time_s,
            self._config.name,
            self._directory,
            self._dropped_name,
        )
        if not isinstance(self._admission, CountingFilter):
            return [rows, gone]

        counts = filters.write_filter(
            self._admission, self._config.name, buckets, self._directory, self._filter_name
        )
        return [rows, gone, counts]

    def _next_ids(self) -> I64:
        number = self.table.changes.seal()
        ids = self.table.changes.read(self.through)
        self.through = number
        return ids

    def _look_up(self, ids: I64) -> Iterator[ChangedRows]:
        """The rows of ids, all of which the caller takes. Those without a row count as dropped."""
        limit = rows_at_once(self.table.layout.width)
        gone = []

        for begin in range(0, ids.size, limit):
            some = ids[begin : begin + limit]
            entries = self.table.lookup_entry(some)
            has_row = entries.times >= 0
            gone.append(some[~has_row])

            if has_row.any():
                rows = np.concatenate([entries.values, entries.state], axis=1)
                yield ChangedRows(some[has_row], rows[has_row], entries.times[has_row])

        others = np.setdiff1d(self._dropped, ids, assume_unique=True)
        self._dropped = np.concatenate([others, *gone])
