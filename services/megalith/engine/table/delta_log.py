"""The delta log: which ids of a table changed, for whoever keeps a copy of the table up to date."""

import itertools
import math
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from megalith.engine.kernels import touched as bits
from megalith.engine.table.index import IndexMemory
from megalith.engine.table.limits import physical_bytes
from megalith.errors import ChangesForgotten, InvalidSetting
from megalith.kernels.dtypes import I64

ID_BYTES = 8  # of an id that is held
_NOTHING: I64 = np.empty(0, np.int64)
_BEGINS = itertools.count(0, 1 << 40)  # more than any log seals
_LEAST_ROOM = 1024  # ids that an open set has room for at first
_MOST_FORGOTTEN = 256  # sets whose times are remembered; the oldest share one time


def check_capacity(capacity: int, table: str) -> None:
    """Refuse a log that no memory would hold."""
    need = capacity * ID_BYTES
    if need > physical_bytes():
        raise InvalidSetting(
            f"table {table}: touched_capacity {capacity} takes up to {need} bytes, "
            f"this machine has {physical_bytes()}"
        )


class _Times(NamedTuple):
    """When a set was changed; infinity = never, or unknown.

    `noted_s` is when its first id was noted, on the monotonic clock. `event_s` is the oldest time
    of the data that changed it, Unix seconds.
    """

    noted_s: float = math.inf
    event_s: float = math.inf


class _SealedSet(NamedTuple):
    number: int
    ids: I64
    times: _Times


class DeltaLog:
    """Sealed sets of changed ids, numbered. Any number of threads may call any method.

    A set names ids, not values: whoever reads it looks each id up, and an id without a row stands
    for a row that was dropped. An id may occur in several sets, and in one set twice.

    How an id comes in. A write gives each row that it changes the touched bit, under the latch of
    the row's partition, and notes the ids of those that did not have it. A bit says that the id is
    in the open set, or is about to be. Sealing closes the open set and lifts the bits of its ids,
    so that the next change is noted again. A set can be read once they are lifted: rows that are
    read then hold every change of its ids up to the sealing, and later changes come with a later
    set.

    The numbers go up by one from `begin`. No two logs of a process share one, so a number of a
    table that was dropped is never taken for one of a later table of the same name.

    How it stays small. Readers acknowledge the number that they have dealt with, and sets that all
    of them have acknowledged go. When the sets hold more ids than there is room for, the oldest go
    although somebody may need them. That is counted, and whoever is behind gets ChangesForgotten:
    only a copy of all rows helps then. When they were changed is still known, until all readers
    have acknowledged something later.

    What happens without memory. An open set that cannot be sealed counts as forgotten: its ids are
    in no set, but their bits stay until the next sealing, which lifts all bits and sends every
    reader for a copy of all rows.

    `_sealing` is held while a set is sealed. `_lock` guards the sets and all counts; it is held for
    a copy of the ids of one write, or of the open set.
    """

    def __init__(self, index: IndexMemory, capacity: int) -> None:
        """`capacity` is how many ids it may hold, 8 bytes each; with 0 nothing is noted."""
        self._index = index
        self._sealing = threading.Lock()
        self._lock = threading.Lock()

        self.capacity = capacity
        self._open = _NOTHING  # the first `_open_size` of them are ids
        self._open_size = 0
        self._is_open_whole = True
        self._noted_s = math.inf  # when the first id of the open set was noted
        self._event_s = math.inf  # the oldest time of the data of the open set

        self._sealed: list[_SealedSet] = []
        self._sealed_size = 0
        self._times_forgotten: list[tuple[int, _Times]] = []  # by number, in rising order

        self.begin = next(_BEGINS)
        self._newest = self.begin
        self._floor = self.begin  # sets up to this number cannot be read any more
        self._acknowledged: dict[str, int] = {}
        self._forgotten = 0

    @property
    def is_on(self) -> bool:
        """Whether writes note what they change."""
        return self.capacity > 0

    @property
    def size(self) -> int:
        """Ids held, in all sets."""
        with self._lock:
            return self._open_size + self._sealed_size

    @property
    def forgotten(self) -> int:
        """Ids that were forgotten for lack of room, ever."""
        with self._lock:
            return self._forgotten

    @property
    def newest(self) -> int:
        """The number of the newest sealed set; `begin` if there was none."""
        with self._lock:
            return self._newest

    def note(self, ids: I64) -> int:
        """Add ids to the open set; how many ids were forgotten for that."""
        if not ids.size or not self.is_on:
            return 0

        with self._lock:
            before = self._forgotten
            self._noted_s = min(self._noted_s, time.monotonic())
            if not (self._is_open_whole and self._append(ids)):
                self._lose_open_set()
                self._forgotten += ids.size

            self._keep_to_capacity()
            return self._forgotten - before

    def note_event(self, time_s: int) -> None:
        """Data of that time, Unix seconds, changes rows; 0 = nobody knows its time.

        Told of every write, also of one whose ids are in the open set already.
        """
        if 0 < time_s < self._event_s and self.is_on:
            with self._lock:
                self._event_s = min(self._event_s, time_s)

    def seal(self) -> int:
        """Close the open set, also an empty one; returns its number.

        If that fails, for example because there is no memory, the set counts as forgotten.
        """
        with self._sealing:
            with self._lock:
                is_whole = self._is_open_whole and self.is_on
                ids = self._open[: self._open_size].copy()
                times = _Times(self._noted_s, self._event_s)
                sealed = _SealedSet(self._newest + 1, ids, times)
                self._noted_s = math.inf
                self._event_s = math.inf
                self._empty_open_set()
                self._is_open_whole = True

            try:
                if is_whole:
                    bits.lift(self._index.arrays, ids)
                else:
                    bits.lift_all(self._index.arrays)

                self._append_sealed(sealed, is_whole=is_whole)
            except BaseException:
                with self._lock:
                    self._forgotten += ids.size
                    self._lose_open_set()
                    self._noted_s = min(self._noted_s, times.noted_s)
                    self._event_s = min(self._event_s, times.event_s)

                raise

            return sealed.number

    def _append_sealed(self, sealed: _SealedSet, *, is_whole: bool) -> None:
        with self._lock:
            self._newest = sealed.number
            if not is_whole:
                for each in self._sealed:
                    self._remember(each.number, each.times)

                self._remember(sealed.number, sealed.times)
                self._let_go_through(sealed.number)
            elif sealed.ids.size:  # an empty set takes a number, and no memory
                self._sealed.append(sealed)
                self._sealed_size += sealed.ids.size
                self._keep_to_capacity()

    def read(self, after: int) -> I64:
        """The distinct ids of all sealed sets above number `after`, in rising order.

        ChangesForgotten if one of the sets is not here any more.
        """
        with self._lock:
            if not self._floor <= after <= self._newest or not self.is_on:
                raise ChangesForgotten(
                    f"which ids changed after set {after} is not known any more: sets up to "
                    f"{self._floor} are gone, and there is room for {self.capacity} ids "
                    "(touched_capacity); take a copy of all rows"
                )

            wanted = [each.ids for each in self._after(after)]

        if not wanted:
            return _NOTHING

        return np.unique(np.concatenate(wanted))

    def oldest_after(self, after: int) -> float:
        """When the first id of the sets above number `after` was noted, also of forgotten ones.

        On the monotonic clock; infinity if they have no ids.
        """
        return min((times.noted_s for times in self._times_after(after)), default=math.inf)

    def oldest_event_after(self, after: int) -> float:
        """The oldest time of the data that changed the sets above number `after`.

        In Unix seconds; infinity if none of it had a time.
        """
        return min((times.event_s for times in self._times_after(after)), default=math.inf)

    def _times_after(self, after: int) -> list[_Times]:
        with self._lock:
            found = [each.times for each in self._after(after)]
            found += [times for number, times in self._times_forgotten if number > after]
            return found

    def join(self, reader: str) -> int:
        """Keep what is sealed from now on for the reader; the number of the newest set."""
        with self._lock:
            self._acknowledged[reader] = self._newest
            return self._newest

    def acknowledge(self, reader: str, number: int) -> None:
        """The reader of that name needs no set up to that number any more."""
        with self._lock:
            self._acknowledged[reader] = number
            self._let_go_acknowledged()

    def dismiss(self, reader: str) -> None:
        """Nobody reads under that name any more, so nothing is kept for it."""
        with self._lock:
            self._acknowledged.pop(reader, None)
            if self._acknowledged:
                self._let_go_acknowledged()

    def resize(self, capacity: int) -> None:
        """Hold up to `capacity` ids from now on. Who turns it off or on forgets everything."""
        with self._lock:
            is_switched = (capacity > 0) != self.is_on
            self.capacity = capacity
            if not is_switched:
                self._keep_to_capacity()

        if is_switched:
            self.forget_all()

    def forget_all(self) -> None:
        """Forget which ids changed up to now, for example because all rows were dropped at once."""
        with self._lock:
            self._noted_s = min(self._noted_s, time.monotonic())
            self._empty_open_set()
            self._is_open_whole = False

        self.seal()

    def _after(self, number: int) -> Iterator[_SealedSet]:
        """The sets above a number, newest first: most readers are at the end of a long log."""
        for each in reversed(self._sealed):
            if each.number <= number:
                return

            yield each

    def _append(self, ids: I64) -> bool:
        """Whether there was memory for it: the rows are written already, so this must not fail."""
        size = self._open_size + ids.size
        if size > self._open.size:
            room = max(_LEAST_ROOM, 2 * size)
            try:
                grown = np.empty(room, np.int64)  # pages come as they are written
            except MemoryError:
                return False

            grown[: self._open_size] = self._open[: self._open_size]
            self._open = grown

        self._open[self._open_size : size] = ids
        self._open_size = size
        return True

    def _keep_to_capacity(self) -> None:
        """Forget the oldest sets until the others fit. The open one goes last."""
        while self._sealed and self._open_size + self._sealed_size > self.capacity:
            oldest = self._sealed[0]
            self._forgotten += oldest.ids.size
            self._remember(oldest.number, oldest.times)
            self._let_go_through(oldest.number)

        if self._open_size > self.capacity:
            self._lose_open_set()

    def _remember(self, number: int, times: _Times) -> None:
        """When a forgotten set was changed; of the oldest it may say too early, never too late."""
        self._times_forgotten.append((number, times))
        if len(self._times_forgotten) <= _MOST_FORGOTTEN:
            return

        _, oldest = self._times_forgotten.pop(0)
        through, second = self._times_forgotten[0]
        both = _Times(
            min(oldest.noted_s, second.noted_s),
            min(oldest.event_s, second.event_s),
        )
        self._times_forgotten[0] = (through, both)

    def _lose_open_set(self) -> None:
        """Count its ids as forgotten; what is noted until it is sealed is forgotten too."""
        self._forgotten += self._open_size
        self._empty_open_set()
        self._is_open_whole = False

    def _empty_open_set(self) -> None:
        self._open = _NOTHING
        self._open_size = 0

    def _let_go_acknowledged(self) -> None:
        number = min(self._acknowledged.values())
        self._let_go_through(number)
        while self._times_forgotten and self._times_forgotten[0][0] <= number:
            self._times_forgotten.pop(0)

    def _let_go_through(self, number: int) -> None:
        self._floor = max(self._floor, number)

        while self._sealed:
            oldest = self._sealed[0]
            if oldest.number > number:
                break

            self._sealed.pop(0)
            self._sealed_size -= oldest.ids.size
