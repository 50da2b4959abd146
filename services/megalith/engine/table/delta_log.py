"""The delta log: which ids of a table changed, for whoever keeps a copy of the table up to date."""

import itertools
import threading
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


def check_capacity(capacity: int, table: str) -> None:
    """Refuse a log that no memory would hold."""
    need = capacity * ID_BYTES
    if need > physical_bytes():
        raise InvalidSetting(
            f"table {table}: touched_capacity {capacity} takes up to {need} bytes, "
            f"this machine has {physical_bytes()}"
        )


class _SealedSet(NamedTuple):
    number: int
    ids: I64


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
    only a copy of all rows helps then.

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
        self._sealed: list[_SealedSet] = []
        self._sealed_size = 0
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
            if not (self._is_open_whole and self._append(ids)):
                self._lose_open_set()
                self._forgotten += ids.size

            self._keep_to_capacity()
            return self._forgotten - before

    def seal(self) -> int:
        """Close the open set, also an empty one; returns its number."""
        with self._sealing:
            with self._lock:
                is_whole = self._is_open_whole and self.is_on
                ids = self._open[: self._open_size].copy()
                self._empty_open_set()
                self._is_open_whole = True
                number = self._newest + 1

            if is_whole:
                bits.lift(self._index.arrays, ids)
            else:
                bits.lift_all(self._index.arrays)

            with self._lock:
                self._newest = number
                if is_whole:
                    self._sealed.append(_SealedSet(number, ids))
                    self._sealed_size += ids.size
                    self._keep_to_capacity()
                else:
                    self._let_go_through(number)

            return number

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

            wanted = [each.ids for each in self._sealed if each.number > after]

        if not wanted:
            return _NOTHING

        return np.unique(np.concatenate(wanted))

    def acknowledge(self, reader: str, number: int) -> None:
        """The reader of that name needs no set up to that number any more."""
        with self._lock:
            self._acknowledged[reader] = number
            self._let_go_through(min(self._acknowledged.values()))

    def dismiss(self, reader: str) -> None:
        """Nobody reads under that name any more, so nothing is kept for it."""
        with self._lock:
            self._acknowledged.pop(reader, None)
            if self._acknowledged:
                self._let_go_through(min(self._acknowledged.values()))

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
            self._empty_open_set()
            self._is_open_whole = False

        self.seal()

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
            self._let_go_through(oldest.number)

        if self._open_size > self.capacity:
            self._lose_open_set()

    def _lose_open_set(self) -> None:
        """Count its ids as forgotten; what is noted until it is sealed is forgotten too."""
        self._forgotten += self._open_size
        self._empty_open_set()
        self._is_open_whole = False

    def _empty_open_set(self) -> None:
        self._open = _NOTHING
        self._open_size = 0

    def _let_go_through(self, number: int) -> None:
        self._floor = max(self._floor, number)

        while self._sealed:
            oldest = self._sealed[0]
            if oldest.number > number:
                break

            self._sealed.pop(0)
            self._sealed_size -= oldest.ids.size
