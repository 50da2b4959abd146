"""Monolith's set of touched ids, for the goldens G22, TouchedKeySetOpsTest, HOPSCOTCH_HASH_SET.

No process has one: a table notes its own changes in its delta log.
"""

import threading

import numpy as np

from megalith.engine.kernels import touched
from megalith.engine.table.limits import physical_bytes
from megalith.engine.table.secret import draw
from megalith.errors import InvalidSetting, LimitExceeded, MalformedArray
from megalith.kernels.dtypes import I64

DEFAULT_CAPACITY = 64 * 2**20 // 32  # ids
_ID_BYTES = 32  # at most, of slots and list


class TouchedIdSet:
    """An exact set of int64 ids with a limit, emptied by `steal`.

    Before each id, a set of more than `capacity` ids drops all it holds: so it holds capacity + 1
    at most, and the insert after that starts over. `add` returns how many ids were dropped; a
    caller that must not miss an id then sends everything instead.

    Addresses for 32 bytes an id of capacity at most are taken when the set is made: an insert comes
    after a write, so it must not fail for lack of them. The system gives the memory as ids come.
    The lock guards the index, the list and both counters; it is held for one kernel call, about 17
    ns an id, which releases the GIL.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._slots, self._listed = _room_for(capacity)
        self.capacity = capacity

        self._multiplier = draw().multiply_1
        self._lock = threading.Lock()
        self._counts = np.zeros(touched.COUNTS, np.int64)
        self._dropped = 0

    def add(self, ids: I64) -> int:
        """Insert ids, repeated ones once; returns how many held ids were dropped on the way."""
        if ids.dtype != np.int64 or ids.ndim != 1 or not ids.flags.c_contiguous:
            raise MalformedArray(
                f"touched ids: {ids.dtype} of shape {ids.shape} is not a packed int64 vector"
            )

        if not ids.size:
            return 0

        with self._lock:
            dropped = int(
                touched.add(
                    ids, self.capacity, self._multiplier, self._slots, self._listed, self._counts
                )
            )

            self._dropped += dropped
            return dropped

    def steal(self) -> I64:
        """All ids in order of their first insertion, leaving the set empty.

        The array is the caller's.
        """
        with self._lock:
            ids = self._listed[: self._counts[touched.SIZE]].copy()
            if ids.size:
                touched.clear(self._multiplier, self._slots, self._listed, self._counts)

            return ids

    def held(self) -> I64:
        """A copy of all ids; they stay."""
        with self._lock:
            return self._listed[: self._counts[touched.SIZE]].copy()

    def resize(self, capacity: int) -> int:
        """Hold up to `capacity` ids from now on.

        Returns how many of those at hand were dropped for it.
        """
        slots, listed = _room_for(capacity)  # before anything changes
        with self._lock:
            ids = self._listed[: self._counts[touched.SIZE]].copy()
            self.capacity = capacity
            self._counts[:] = 0
            self._slots = slots
            self._listed = listed
            dropped = int(
                touched.add(
                    ids, capacity, self._multiplier, self._slots, self._listed, self._counts
                )
            )

            self._dropped += dropped
            return dropped

    @property
    def dropped(self) -> int:
        """Ids dropped since the set was made."""
        with self._lock:
            return self._dropped

    @property
    def size(self) -> int:
        """Ids held.

        It is not `len`: an empty set would be false, and a table would take it for none.
        """
        with self._lock:
            return int(self._counts[touched.SIZE])


def _room_for(capacity: int) -> tuple[I64, I64]:
    """Slots, all free, and the list of ids. Their pages come as they are written."""
    if capacity < 1:
        raise InvalidSetting(f"touched ids: capacity {capacity} must be 1 or more")

    need = capacity * _ID_BYTES
    if need > physical_bytes():
        raise InvalidSetting(
            f"touched ids: a capacity of {capacity} takes up to {need} bytes, "
            f"this machine has {physical_bytes()}"
        )

    least = 3 * (capacity + 1) // 2  # at 2/3 full most probes end in one line
    num_slots = 1 << least.bit_length()
    try:
        return np.zeros(num_slots, np.int64), np.empty(capacity + 1, np.int64)
    except MemoryError as error:
        raise LimitExceeded(
            f"touched ids: the system refuses memory for a capacity of {capacity}"
        ) from error
