"""What one target has of the tables of this ps, and what it has to be sent next."""

import logging
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np

from megalith.engine.table import served
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import ChangesForgotten
from megalith.kernels.dtypes import I64, Bools
from megalith.ps.syncing.request import TableDelta

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 65_536  # of all tables
_BYTES_AT_ONCE = 8 << 20  # of all tables, if that is fewer rows
_ID_BYTES = 8


class TargetCursor:
    """The sets of the delta logs that a target has got. Not thread-safe: one thread pushes.

    A target of which nothing is known gets all rows, and so does one that is further behind than a
    delta log reaches. Until a target has taken everything, nothing moves on: it is sent the same
    ids again, with the values of then.
    """

    def __init__(self, name: str, shard: int, num_shards: int) -> None:
        """Of `num_shards`, the target gets the ids of one; with 0 it gets all."""
        self._name = name
        self._reader = f"sync {name}"
        self._shard = shard
        self._num_shards = num_shards

        self._sets: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self.full_pushes = 0  # of tables

    def deltas(self, tables: Sequence[EmbeddingTable]) -> Iterator[list[TableDelta]]:
        """Everything that the target lacks, some rows of each table at a time.

        Each list has all tables, also those without a change; there is none if nothing changed.
        """
        self._next = {}
        count = max(1, len(tables))
        pieces = [self._pieces_of(table, _rows_at_once(table, count)) for table in tables]

        for together in zip_longest(*pieces):
            found = []

            for table, piece in zip(tables, together, strict=True):
                found.append(_no_rows(table) if piece is None else piece)

            yield found

    def acknowledge(self, tables: Sequence[EmbeddingTable]) -> None:
        """The target has taken all that the last `deltas` gave."""
        self._sets = self._next
        for table in tables:
            table.changes.acknowledge(self._reader, self._sets[table.config.name])

    def forget(self) -> None:
        """The target may have lost what it had: it gets all rows next."""
        self._sets = {}

    def dismiss(self, tables: Sequence[EmbeddingTable]) -> None:
        """Keep nothing for this target any more."""
        for table in tables:
            table.changes.dismiss(self._reader)

    def _pieces_of(self, table: EmbeddingTable, rows_at_once: int) -> Iterator[TableDelta]:
        name = table.config.name
        since = self._sets.get(name)
        self._next[name] = table.changes.newest
        if since is None:
            logger.info("target %s gets all rows of table %s", self._name, name)
            return self._all_rows(table, rows_at_once)

        try:
            ids = table.changes.read(since)
        except ChangesForgotten as error:
            logger.warning(
                "target %s gets all rows of table %s, and rows that were dropped meanwhile stay "
                "there: %s",
                self._name,
                name,
                error,
            )
            return self._all_rows(table, rows_at_once)

        return self._changed_rows(table, self._of_shard(ids), rows_at_once)

    def _all_rows(self, table: EmbeddingTable, rows_at_once: int) -> Iterator[TableDelta]:
        self.full_pushes += 1
        # What changes from here on is kept for this target, however long it takes.
        table.changes.acknowledge(self._reader, self._next[table.config.name])

        for rows in served.all_rows(table, rows_at_once):
            is_mine = self._is_of_shard(rows.ids)
            if is_mine.any():
                ids = rows.ids[is_mine]
                values = rows.values[is_mine]
                yield TableDelta(table.config.name, ids, values)

    def _changed_rows(
        self, table: EmbeddingTable, ids: I64, rows_at_once: int
    ) -> Iterator[TableDelta]:
        for begin in range(0, ids.size, rows_at_once):
            found = served.look_up(table, ids[begin : begin + rows_at_once])
            zeros = np.zeros((found.gone.size, table.config.dim), np.float32)
            yield TableDelta(
                table.config.name,
                np.concatenate([found.present.ids, found.gone]),
                np.concatenate([found.present.values, zeros]),
            )

    def _of_shard(self, ids: I64) -> I64:
        return ids[self._is_of_shard(ids)]

    def _is_of_shard(self, ids: I64) -> Bools:
        if not self._num_shards:
            return np.ones(ids.size, np.bool_)

        return np.asarray(ids % self._num_shards == self._shard)


def _rows_at_once(table: EmbeddingTable, num_tables: int) -> int:
    """The share of one of so many tables, at least one row.

    The optimizer state, which is read along, counts.
    """
    row_bytes = _ID_BYTES + table.layout.width * 4
    fitting = _BYTES_AT_ONCE // row_bytes
    return max(1, min(_ROWS_AT_ONCE, fitting) // num_tables)


def _no_rows(table: EmbeddingTable) -> TableDelta:
    values = np.zeros((0, table.config.dim), np.float32)
    return TableDelta(table.config.name, np.empty(0, np.int64), values)
