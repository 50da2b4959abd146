"""Changes that several replicas are sent: looked up and compressed once."""

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from megalith.engine.table.served import ServedRow
from megalith.ps.following.versions import Dropped, Event, RowsChanged

_MOST_BYTES = 16 << 20  # of one table; larger changes are made for each replica anew
_KEPT_BYTES = 64 << 20  # of all tables; those that were made first go


class Span(NamedTuple):
    """Changes of one table: those after the set `since` of a delta log, up to the set `through`."""

    table: str
    row: ServedRow  # how rows are written: another compressor makes other bytes
    log: int  # the begin of the log, which tells it from one of an earlier table of that name
    since: int
    through: int


class _Kept(NamedTuple):
    """The changes of a span, and their bytes."""

    span: Span
    events: list[Event]
    size: int


class SharedChanges:
    """The last changes of each table, for replicas that are equally far.

    Values are those of the first time that somebody asked. They hold everything up to `through`,
    and what changed after that comes with the next span.

    `_lock` guards the locks of tables and what is kept. The lock of a table is held while its
    changes are looked up, so that a second replica waits for them instead of doing the same, but
    never while they are sent: a slow replica delays nobody.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._kept: dict[str, _Kept] = {}  # what was made last is last
        self._kept_bytes = 0

    def of(self, span: Span, make: Callable[[], Iterator[Event]]) -> Iterator[Event]:
        """The changes of that span, as `make` looks them up."""
        with self._lock:
            making = self._making.setdefault(span.table, threading.Lock())

        with making:
            first, rest = self._first_of(span, make)

        yield from first
        yield from rest

    def _first_of(
        self, span: Span, make: Callable[[], Iterator[Event]]
    ) -> tuple[list[Event], Iterator[Event]]:
        """As many as may be kept, and the others, which are not looked up yet."""
        with self._lock:
            kept = self._kept.get(span.table)
            if kept is not None and kept.span == span:
                return kept.events, iter(())

        made: list[Event] = []
        size = 0
        events = make()
        for event in events:
            made.append(event)
            size += _size(event)
            if size > _MOST_BYTES:
                return made, events

        self._keep(_Kept(span, made, size))
        return made, iter(())

    def _keep(self, kept: _Kept) -> None:
        with self._lock:
            self._forget(kept.span.table)
            self._kept[kept.span.table] = kept
            self._kept_bytes += kept.size

            while self._kept_bytes > _KEPT_BYTES:
                self._forget(next(iter(self._kept)))

    def _forget(self, table: str) -> None:
        if table in self._kept:
            self._kept_bytes -= self._kept.pop(table).size


def _size(event: Event) -> int:
    match event:
        case RowsChanged(_, ids, rows, times):
            return ids.nbytes + rows.nbytes + times.nbytes
        case Dropped(_, ids):
            return ids.nbytes
        case _:
            return 0
