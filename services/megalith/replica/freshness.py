"""How fresh a replica is: what was measured lately, for people who look."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from megalith.protos import replication_pb2 as pb
from megalith.wire.reports import TableFreshness

_KEPT = 4096  # versions: some minutes of two ps
_KEPT_OF_TABLE = 512


def event_ages(version: pb.VersionEnd, now_s: float) -> dict[str, float]:
    """By table, how old the oldest data of a version is at `now_s`, on the wall clock.

    Data of the future is 0 seconds old: the clock of its source is ahead of this one.
    """
    return {table: max(0.0, now_s - at_s) for table, at_s in version.oldest_events_s.items()}


@dataclass(slots=True)
class _TableSeconds:
    """Of one table: from an update, and from its data, until it was visible."""

    updates: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_OF_TABLE))
    events: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_OF_TABLE))


class RecentFreshness:
    """Seconds from an update at a ps, and from the time of its data, until it was visible here.

    They are of recent versions: the oldest of each version counts, for all tables and for each one.
    `_lock` guards them.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self._event_seconds: deque[float] = deque(maxlen=_KEPT)
        self._by_table: dict[str, _TableSeconds] = {}

    def applied(self, version: pb.VersionEnd) -> None:
        """A version without changes says nothing, but forgets the tables that are gone."""
        ages = {table: age_us / 1e6 for table, age_us in version.ages_us.items() if age_us}
        events = event_ages(version, self._wall_clock())
        with self._lock:
            for table in self._by_table.keys() - version.sets.keys():
                del self._by_table[table]

            if ages:
                self._seconds.append(max(ages.values()))
            if events:
                self._event_seconds.append(max(events.values()))

            for table, age_s in ages.items():
                self._of(table).updates.append(age_s)
            for table, age_s in events.items():
                self._of(table).events.append(age_s)

    def _of(self, table: str) -> _TableSeconds:
        return self._by_table.setdefault(table, _TableSeconds())

    def percentiles(self) -> tuple[float, float]:
        """From an update: the median and the 99th percentile; zeros before the first."""
        with self._lock:
            seconds = list(self._seconds)

        return _percentiles(seconds)

    def event_percentiles(self) -> tuple[float, float]:
        """The same from the time of the data."""
        with self._lock:
            seconds = list(self._event_seconds)

        return _percentiles(seconds)

    def by_table(self) -> tuple[TableFreshness, ...]:
        """By name."""
        with self._lock:
            seconds = {
                table: (list(of.updates), list(of.events)) for table, of in self._by_table.items()
            }

        found = []
        for table in sorted(seconds):
            updates, events = seconds[table]
            found.append(TableFreshness(table, *_percentiles(updates), *_percentiles(events)))

        return tuple(found)


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    if not seconds:
        return 0.0, 0.0

    median, slowest = np.percentile(seconds, [50, 99])
    return float(median), float(slowest)
