"""The memory of a table's rows, and the pool that hands them out."""

import numpy as np

from megalith.ps.kernels.dtypes import F32
from megalith.ps.kernels.layout import (
    POOL,
    POOL_FREE,
    POOL_LIMIT,
    POOL_NEXT,
    POOL_SLOTS,
    UNLIMITED,
    Rows,
)
from megalith.ps.reservation import HUGE_PAGE, Reservation

_FLOAT_BYTES = 4
FREED_BYTES = 4  # an element of the stack of freed rows


class RowMemory:
    """Addresses for `max_rows` rows of equal width, side by side, as the kernels take them in `arrays`."""

    def __init__(self, template: F32, max_rows: int) -> None:
        self.row_bytes = template.size * _FLOAT_BYTES
        self.max_rows = max_rows
        self._memory = Reservation(max_rows * self.row_bytes)
        self._memory.use_huge_pages(HUGE_PAGE)  # a small table takes small pages
        self._freed = Reservation(max_rows * FREED_BYTES)
        pool = np.zeros(POOL, np.int64)
        pool[POOL_LIMIT], pool[POOL_SLOTS] = self.max_rows, UNLIMITED
        self.arrays = Rows(
            self._memory.array(np.float32), template, pool, self._freed.array(np.uint32)
        )
        self._most_freed = 0

    def limit(self, max_rows: int, max_slots: int) -> None:
        """Hand out no more than this many rows at a time, to an index of no more than this many slots."""
        self.arrays.pool[POOL_LIMIT] = min(max_rows, self.max_rows)
        self.arrays.pool[POOL_SLOTS] = max_slots

    @property
    def num_taken(self) -> int:
        """Rows ever used since the start or the last `clear`."""
        return int(self.arrays.pool[POOL_NEXT])

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
