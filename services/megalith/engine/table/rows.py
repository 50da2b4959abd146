"""The memory of a table's rows, and the pool that hands them out."""

import numpy as np

from megalith.engine.kernels.layout import (
    POOL,
    POOL_FREE,
    POOL_LIMIT,
    POOL_NEXT,
    POOL_SLOTS,
    UNLIMITED,
    Rows,
)
from megalith.engine.table.reservation import HUGE_PAGE, Reservation
from megalith.kernels.dtypes import F32

_FLOAT_BYTES = 4
FREED_BYTES = 4  # an element of the stack of freed rows


class RowMemory:
    """Addresses for `max_rows` rows of equal width, side by side.

    `arrays` is what the kernels take.
    """

    def __init__(self, template: F32, max_rows: int) -> None:
        self.row_bytes = template.size * _FLOAT_BYTES
        self.max_rows = max_rows

        self._memory = Reservation(max_rows * self.row_bytes)
        self._memory.use_huge_pages(HUGE_PAGE)  # a small table takes small pages
        self._freed = Reservation(max_rows * FREED_BYTES)

        pool = np.zeros(POOL, np.int64)
        pool[POOL_LIMIT] = self.max_rows
        pool[POOL_SLOTS] = UNLIMITED

        values = self._memory.array(np.float32)
        freed = self._freed.array(np.uint32)
        self.arrays = Rows(values, template, pool, freed)
        self._most_freed = 0

    def limit(self, max_rows: int, max_slots: int) -> None:
        """Hand out at most so many rows at a time, to an index of at most so many slots."""
        self.arrays.pool[POOL_LIMIT] = min(max_rows, self.max_rows)
        self.arrays.pool[POOL_SLOTS] = max_slots

    @property
    def num_allowed(self) -> int:
        """How many rows `limit` allows at a time."""
        return int(self.arrays.pool[POOL_LIMIT])

    @property
    def num_taken(self) -> int:
        """Rows ever used since the start or the last `clear`."""
        return int(self.arrays.pool[POOL_NEXT])

    @property
    def nbytes(self) -> int:
        """Rows ever used, with the stack of freed ones at its highest."""
        free = int(self.arrays.pool[POOL_FREE])
        self._most_freed = max(self._most_freed, free)
        used = self.num_taken * self.row_bytes
        return used + self._most_freed * FREED_BYTES

    def clear(self) -> None:
        """Take all rows back and give the memory back; nothing refers to a row any more."""
        self.arrays.pool[POOL_NEXT] = 0
        self.arrays.pool[POOL_FREE] = 0
        self._most_freed = 0
        self._memory.release()
        self._freed.release()
