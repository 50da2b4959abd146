"""Which rows of a table changed.

There is a set of their ids, and bits in the index that say which ids are in it.
"""

import threading

import numpy as np

from megalith.engine.kernels import touched as bits
from megalith.engine.table.index import IndexMemory
from megalith.engine.table.touched import TouchedIdSet
from megalith.kernels.dtypes import I64


class TouchedRows:
    """The touched ids of one table, if they are tracked.

    Any number of threads may call any method.

    A write gives each row that it changes the touched bit, under the latch of the row's partition,
    and tells the ids of those that did not have it (`note`). The set is exact; a bit only says that
    the id is in it, or is about to be. Ids that leave the set lose their bit first, so that the
    next change is told again. `_lock` guards the count of the forgotten.
    """

    def __init__(self, index: IndexMemory, ids: TouchedIdSet | None) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._ids = ids
        self._forgotten = 0

    @property
    def ids(self) -> TouchedIdSet | None:
        """The set; None if nothing is tracked."""
        return self._ids

    @property
    def forgotten(self) -> int:
        """Ids that were dropped for lack of room, ever."""
        with self._lock:
            return self._forgotten

    def note(self, ids: I64) -> int:
        """Put ids whose rows got the bit into the set; how many it forgot for that."""
        held = self._ids  # once: `track` may put another in its place
        dropped = 0 if held is None else held.add(ids)
        if dropped:
            self._forget(dropped)

        return dropped

    def steal(self) -> I64:
        """The ids noted since the last call, in order of their first change.

        Rows read after it hold every change that it tells of, and changes that it does not tell of
        come with the next call.
        """
        held = self._ids
        ids = np.empty(0, np.int64) if held is None else held.steal()
        bits.lift(self._index.arrays, ids)
        return ids

    def restore(self, ids: I64, forgotten: int) -> None:
        """Continue with the touched ids of a checkpoint.

        `forgotten` ids had been lost for lack of room.
        """
        self.note(ids)
        with self._lock:
            self._forgotten += forgotten

    def track(self, capacity: int) -> None:
        """Hold up to `capacity` ids from now on; 0 tracks nothing."""
        if self._ids is None or not capacity:
            self._ids = TouchedIdSet(capacity) if capacity else None
            self._forget(0)
        else:
            self._forget(self._ids.resize(capacity))

    def _forget(self, dropped: int) -> None:
        """Let every row be noted again, because the set dropped ids.

        They are counted after that: who sees the count and then copies all rows misses no change.
        """
        bits.lift_all(self._index.arrays)
        with self._lock:
            self._forgotten += dropped
