"""What one replica has of this ps, and what it has to be told next."""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from megalith.engine.segments.compressor import RowCodec
from megalith.engine.table import served
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.table.served import ServedRow, ServedRows
from megalith.engine.variable.variable import Variable
from megalith.errors import ChangesForgotten
from megalith.kernels.dtypes import I64, Bools
from megalith.ps.following.shared_changes import SharedChanges, Span
from megalith.ps.following.shared_variables import SharedVariables
from megalith.ps.following.versions import (
    Cursor,
    Dropped,
    Event,
    RowsChanged,
    SnapshotEnds,
    TableBegins,
    VariablesChanged,
    VersionEnds,
    num_in,
)
from megalith.ps.store.store import Store
from megalith.schema import TableConfig
from megalith.wire.routing import buckets_of

logger = logging.getLogger(__name__)

_MOST_ROWS = 16_384  # of a message
_MOST_BYTES = 4 << 20  # of a message, if one row or one variable is not larger
_ROW_EXTRA_BYTES = 12  # id and time of a row


class _Begun(NamedTuple):
    """A table as a replica knows it: the begin of its log, and what a row is."""

    log: int
    row: ServedRow


class Follower:
    """Tells one replica what changed, version by version. Not thread-safe: one stream has one.

    What it knows of the replica are the sets of the delta logs that the replica has acknowledged.
    Values are read when they are sent, so an id that changed ten times is sent once.
    """

    def __init__(
        self,
        store: Store,
        shared: SharedChanges,
        variables: SharedVariables,
        name: str,
        cursor: Cursor,
        log_id: str,
        share: Bools,
        max_message_bytes: int,
    ) -> None:
        self._store = store
        self._shared_changes = shared
        self._shared_variables = variables

        self._reader = f"replica {name}"
        self._share = share
        self._most_bytes = min(_MOST_BYTES, max_message_bytes // 2)
        self._is_whole_share = bool(share.all())

        self._sets: dict[str, int] = {}
        if cursor.log_id == log_id:
            self._sets = dict(cursor.sets)

        self._begun: dict[str, _Begun] = {}  # tables as the replica knows them
        self._sent: dict[str, int] = {}  # by variable, the change up to which it was sent
        self._left_out: set[str] = set()  # tables that the replica does not get
        self.number = 0  # of the last version
        self._num_sent = 0  # rows, dropped ids and values of variables since then
        self.snapshots = 0  # of tables, on this stream

    def version(self, sealed_s: float) -> Iterator[Event]:
        """Everything that changed up to the last sealing, which began at `sealed_s`.

        Variables follow on their own clock.
        """
        self._num_sent = 0
        tables = self._followed_tables()
        oldest_s = {}
        oldest_events_s = {}
        for table in tables:
            name = table.config.name
            since = self._sets.get(name)
            if since is not None:
                noted_s = table.changes.oldest_after(since)
                if noted_s < math.inf:
                    oldest_s[name] = noted_s

                event_s = table.changes.oldest_event_after(since)
                if event_s < math.inf:
                    oldest_events_s[name] = int(event_s)

            yield from self._counted(self._changes_of(table))

        present = {table.config.name for table in tables}
        self._sets = {name: number for name, number in self._sets.items() if name in present}
        variables = self._store.variables()
        yield from self._counted(self._variables(variables, sealed_s))
        self.number += 1
        yield VersionEnds(
            self.number,
            dict(self._sets),
            sealed_s,
            oldest_s,
            oldest_events_s,
            max((table.max_update_s for table in tables), default=0),
            tuple(variable.config.part_name for variable in variables),
            self._num_sent,
        )

    def _counted(self, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            self._num_sent += num_in(event)
            yield event

    def _followed_tables(self) -> list[EmbeddingTable]:
        """Those that note what changes. Of others nobody could tell what to send."""
        followed = []
        for table in self._store.tables():
            name = table.config.name
            if table.changes.is_on:
                followed.append(table)
            elif name not in self._left_out:
                self._left_out.add(name)
                logger.warning(
                    "%s does not get table %s: its touched_capacity is 0, so nobody knows what "
                    "changes in it",
                    self._reader,
                    name,
                )

        return followed

    def acknowledge(self) -> None:
        """The replica has the last version: its sets are not kept for it any more."""
        for table in self._store.tables():
            number = self._sets.get(table.config.name)
            if number is not None:
                table.changes.acknowledge(self._reader, number)

    def dismiss(self) -> None:
        """Keep nothing for this replica any more."""
        for table in self._store.tables():
            table.changes.dismiss(self._reader)

    def _changes_of(self, table: EmbeddingTable) -> Iterator[Event]:
        newest = table.changes.newest
        config = table.config  # once, and after that: `reconfigure` may put another in its place
        name = config.name
        codec = _codec(config)
        since = self._sets.get(name)

        if since is not None and self._is_served_alike(table, config):
            try:
                ids = table.changes.read(since)
            except ChangesForgotten as error:
                logger.warning("%s gets all rows of table %s: %s", self._reader, name, error)
            else:
                yield from self._begin(table, config)
                span = Span(name, served.row_of(config), table.changes.begin, since, newest)
                yield from self._changed_rows(table, codec, ids, span)
                self._sets[name] = newest
                return

        joined = table.changes.join(self._reader)  # what is sealed during the walk comes after it
        yield from self._snapshot(table, config, codec)
        self._sets[name] = joined

    def _is_served_alike(self, table: EmbeddingTable, config: TableConfig) -> bool:
        """Whether rows look as they did when they were sent; new settings change all of them."""
        begun = self._begun.get(config.name)
        if begun is None or begun.log != table.changes.begin:
            return True

        return begun.row == served.row_of(config)

    def _begin(self, table: EmbeddingTable, config: TableConfig) -> Iterator[Event]:
        begun = _begun(table, config)
        if self._begun.get(config.name) != begun:
            self._begun[config.name] = begun
            yield TableBegins(config, is_snapshot=False)

    def _changed_rows(
        self, table: EmbeddingTable, codec: RowCodec, ids: I64, span: Span
    ) -> Iterator[Event]:
        """Replicas with all ids share the work; those with a share of them do their own."""
        if not self._is_whole_share:
            return self._rows_of(table, codec, ids)

        return self._shared_changes.of(span, lambda: self._rows_of(table, codec, ids))

    def _rows_of(self, table: EmbeddingTable, codec: RowCodec, ids: I64) -> Iterator[Event]:
        ids = self._shared(ids)
        at_once = self._rows_at_once(codec)
        for begin in range(0, ids.size, at_once):
            found = served.look_up(table, ids[begin : begin + at_once])

            if found.present.ids.size:
                yield _rows(table.config.name, codec, found.present)

            if found.gone.size:
                yield Dropped(table.config.name, found.gone)

    def _rows_at_once(self, codec: RowCodec) -> int:
        """As many as fit into a message, at least one."""
        fitting = self._most_bytes // (codec.row_bytes + _ROW_EXTRA_BYTES)
        return max(1, min(_MOST_ROWS, fitting))

    def _snapshot(
        self, table: EmbeddingTable, config: TableConfig, codec: RowCodec
    ) -> Iterator[Event]:
        name = config.name
        self._begun[name] = _begun(table, config)
        self.snapshots += 1
        yield TableBegins(config, is_snapshot=True)

        count = 0
        for part in served.all_rows(table, self._rows_at_once(codec)):
            mine = self._shared_rows(part)
            count += mine.ids.size
            if mine.ids.size:
                yield _rows(name, codec, mine)

        yield SnapshotEnds(name, count)

    def _shared(self, ids: I64) -> I64:
        if self._is_whole_share:
            return ids

        return ids[self._share[buckets_of(ids)]]

    def _shared_rows(self, rows: ServedRows) -> ServedRows:
        if self._is_whole_share:
            return rows

        is_mine = self._share[buckets_of(rows.ids)]
        return ServedRows(rows.ids[is_mine], rows.values[is_mine], rows.times[is_mine])

    def _variables(self, variables: Sequence[Variable], sealed_s: float) -> Iterator[Event]:
        """Those that are not as they were sent, in messages of some megabytes."""
        changed: dict[str, NDArray[Any]] = {}
        size = 0
        for name, (change, value) in self._shared_variables.values(variables, sealed_s).items():
            if self._sent.get(name) == change:
                continue

            if changed and size + value.nbytes > self._most_bytes:
                yield VariablesChanged(changed)
                changed = {}
                size = 0

            self._sent[name] = change
            changed[name] = value
            size += value.nbytes

        if changed:
            yield VariablesChanged(changed)


def _begun(table: EmbeddingTable, config: TableConfig) -> _Begun:
    return _Begun(table.changes.begin, served.row_of(config))


def _codec(config: TableConfig) -> RowCodec:
    segments = [(segment.compressor, segment.dim) for segment in config.segments]
    return RowCodec(segments)


def _rows(table: str, codec: RowCodec, rows: ServedRows) -> RowsChanged:
    return RowsChanged(table, rows.ids, codec.encode(rows.values), rows.times)
