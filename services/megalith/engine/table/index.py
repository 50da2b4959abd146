"""The memory of a table's index: 32 partitions, each with addresses of its own to grow in."""

import numpy as np

from megalith.engine.kernels import layout
from megalith.engine.kernels.layout import (
    CAPACITY,
    FAR,
    GROWTH,
    LAST,
    LEAST_SPILL,
    LINE,
    MOST_SPILL,
    PARTITIONS,
    RECORD,
    ROOM,
    SPILL,
    USED,
    Index,
    Secret,
)
from megalith.engine.table.reservation import HUGE_PAGE, Reservation
from megalith.kernels.dtypes import I64

SLOT_BYTES = 16
_SLOTS_PER_PAGE = HUGE_PAGE // SLOT_BYTES
_SPILL_PAGES = MOST_SPILL // _SLOTS_PER_PAGE
_HUGE_AT_ENTRIES = 1 << 20  # partitions of about 1 MB
_LEAST_CAPACITY = 256  # small, but enough to start all partitions at different sizes
# A share of the hash space can exceed the mean; addresses cost nothing.
ADDRESS_BYTES = int(2 * SLOT_BYTES * GROWTH / layout.GROW_AT)  # reserved for an entry
# Just after growing, a partition is GROW_AT / GROWTH full: the most index memory that an entry can
# cost.
MOST_BYTES_PER_ENTRY = SLOT_BYTES * GROWTH / layout.GROW_AT


class IndexMemory:
    """Slots and partition records, as the kernels take them in `arrays`.

    The partitions start with capacities spread over one growth step, so that they grow one after
    the other: the table as a whole is always equally full, and no batch pays for all of them.
    """

    def __init__(self, max_entries: int, expected_entries: int, secret: Secret) -> None:
        slots = max_entries * ADDRESS_BYTES // SLOT_BYTES
        room = slots // PARTITIONS + _SLOTS_PER_PAGE
        # An odd number of huge pages apart, so that partitions do not compete for the same sets of
        # the TLB.
        pages = (room // _SLOTS_PER_PAGE + 1 + _SPILL_PAGES) | 1
        stride = pages * _SLOTS_PER_PAGE

        self._memory = Reservation(PARTITIONS * pages * HUGE_PAGE)
        self._expected = expected_entries

        # A partition grows downwards from an end of its own within a huge page: so the partitions'
        # sizes stay different although large ones are whole pages.
        numbers = np.arange(PARTITIONS)
        tops = (numbers + 1) * _SLOTS_PER_PAGE // PARTITIONS
        begins = numbers * stride
        left_free = (_SPILL_PAGES + 1) * _SLOTS_PER_PAGE
        # The ends of the home lines and the first spill
        ends = begins + stride - left_free + tops

        parts = np.zeros(PARTITIONS * RECORD, np.int64)
        parts[LAST::RECORD] = ends - LEAST_SPILL - LINE
        parts[ROOM::RECORD] = ends - begins - LEAST_SPILL
        memory = self._memory.array(np.uint64)
        self.arrays = Index(memory, parts, secret)

        self._has_huge_pages = False
        self.reset_capacities()

    def _field(self, name: int) -> I64:
        return self.arrays.parts[name::RECORD]

    @property
    def used(self) -> int:
        """Entries in all partitions."""
        return int(self._field(USED).sum())

    @property
    def nbytes(self) -> int:
        slots = self._field(CAPACITY) + self._field(SPILL)
        return int(slots.sum()) * SLOT_BYTES

    def expect(self, entries: int) -> None:
        """Use huge pages from now on if so many entries fill some in each partition.

        All at once, so that a table has few mappings. A smaller one takes kilobytes with small
        pages, not 64 MB.
        """
        if not self._has_huge_pages and entries >= _HUGE_AT_ENTRIES:
            self._has_huge_pages = True
            self._memory.use_huge_pages()

    def reset_capacities(self) -> None:
        """Make every partition as small as at the start.

        The slots are zero, and no other thread is at work.
        """
        self.make_capacities(self._expected)

    def make_capacities(self, entries: int) -> None:
        """Make the partitions large enough for so many entries, under the same conditions."""
        self.expect(entries)
        even_share = entries / PARTITIONS / layout.GROW_AT
        share = max(_LEAST_CAPACITY, even_share)
        steps = np.arange(PARTITIONS) / PARTITIONS
        spread = share * GROWTH**steps

        room = self._field(ROOM)
        slots = np.minimum(spread, room)
        lines = slots.astype(np.int64) // LINE

        capacity = self._field(CAPACITY)
        capacity[:] = lines * LINE

        spill = self._field(SPILL)
        spill[:] = LEAST_SPILL

        self._field(USED)[:] = 0
        self._field(FAR)[:] = 0

    def clear(self) -> None:
        """Forget everything and give the memory back.

        The caller is the writer of all partitions.
        """
        self._memory.release()
        self._memory.use_small_pages()
        self._has_huge_pages = False
        self.reset_capacities()
