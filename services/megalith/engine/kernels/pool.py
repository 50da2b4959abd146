"""Which rows are free: a stack of rows given back, then the rows that were never used."""

import numpy as np

from megalith.engine.kernels.latch import drop_latch, take_latch
from megalith.engine.kernels.layout import POOL_FREE, POOL_LATCH, POOL_LIMIT, POOL_NEXT, Int, Rows
from megalith.kernels.dtypes import I64
from megalith.kernels.jit import kernel


@kernel
def take_rows(rows: Rows, count: Int, out: I64) -> Int:
    """Claim up to `count` rows into out[0..]; how many there were.

    The limit holds for the rows in use.
    """
    pool = rows.pool
    take_latch(pool, POOL_LATCH)
    in_use = pool[POOL_NEXT] - pool[POOL_FREE]
    granted = max(0, min(count, pool[POOL_LIMIT] - in_use))
    again = min(granted, pool[POOL_FREE])
    pool[POOL_FREE] -= again
    for i in range(again):
        out[i] = rows.freed[pool[POOL_FREE] + i]
    for i in range(again, granted):
        out[i] = pool[POOL_NEXT] + i - again
    pool[POOL_NEXT] += granted - again
    drop_latch(pool, POOL_LATCH)
    return granted


@kernel
def give_rows(rows: Rows, given: I64) -> None:
    """Put rows on the stack of free ones; nothing may refer to them any more."""
    pool = rows.pool
    take_latch(pool, POOL_LATCH)
    for i in range(given.size):
        rows.freed[pool[POOL_FREE] + i] = np.uint32(given[i])
    pool[POOL_FREE] += given.size
    drop_latch(pool, POOL_LATCH)
