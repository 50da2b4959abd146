"""The memory of a table's rows, and the pool that hands them out."""

import numpy as np

from megalith.ps.kernels.dtypes import F32
from megalith.ps.kernels.layout import POOL, POOL_FREE, POOL_LIMIT, POOL_NEXT, POOL_SLOTS, UNLIMITED, Rows
from megalith.ps.reservation import HUGE_PAGE, Reservation

_FLOAT_BYTES = 4
FREED_BYTES = 4  # an element of the stack of freed rows


class RowMemory:
    """Rows of equal width, side by side, as the kernels take them in `arrays`."""

    def __init__(self, template: F32, max_rows: int) -> None:
        self.row_bytes = template.size * _FLOAT_BYTES
        self._memory = Reservation.largest(max_rows * self.row_bytes, 2 * HUGE_PAGE)
        self._memory.use_huge_pages(HUGE_PAGE, self._memory.bytes.size)  # a small table takes small pages
        self.max_rows = min(self._memory.bytes.size // self.row_bytes, 2**32 - 2)
        self._freed = Reservation.largest(self.max_rows * FREED_BYTES, self.max_rows * FREED_BYTES)
        pool = np.zeros(POOL, np.int64)
        pool[POOL_LIMIT], pool[POOL_SLOTS] = self.max_rows, UNLIMITED
        self.arrays = Rows(self._memory.array(np.float32), template, pool, self._freed.array(np.uint32))
        self._most_freed = 0

    def limit(self, max_rows: int, max_slots: int) -> None:
        """Hand out no more than this many rows at a time, to an index of no more than this many slots."""
        self.arrays.pool[POOL_LIMIT] = min(max_rows, self.max_rows)
        self.arrays.pool[POOL_SLOTS] = max_slots

    @property
    def nbytes(self) -> int:
        """Rows ever used, with the stack of freed ones at its highest."""
        pool = self.arrays.pool
        self._most_freed = max(self._most_freed, int(pool[POOL_FREE]))
        return int(pool[POOL_NEXT]) * self.row_bytes + self._most_freed * FREED_BYTES

    def clear(self) -> None:
        """Take all rows back and give the memory back; nothing refers to a row any more."""
        self.arrays.pool[POOL_NEXT] = self.arrays.pool[POOL_FREE] = 0
        self._most_freed = 0
        self._memory.release()
        self._freed.release()
