"""An open-addressing index from id to row number.

`slots` holds pairs: slots[2h] is an id, slots[2h + 1] its row or EMPTY. Its capacity is a power of two, and at least
one slot is empty, so every probe ends.
"""

import numpy as np
from numpy.typing import NDArray

from megalith.ps.kernels._jit import kernel

EMPTY = np.int64(-1)  # a row number is never negative


@kernel
def mix(key: np.int64) -> np.uint64:
    """Another mixer than the routing hash: all ids of one ps share that one's top bits."""
    x = np.uint64(key)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    return x


@kernel
def find(slots: NDArray[np.int64], keys: NDArray[np.int64], rows: NDArray[np.int64]) -> int:
    """rows[i] = row of keys[i] or EMPTY; returns how many were found."""
    mask = np.uint64(slots.size // 2 - 1)
    found = 0
    for i in range(keys.size):
        h = mix(keys[i]) & mask
        while slots[2 * h + 1] != EMPTY and slots[2 * h] != keys[i]:
            h = (h + np.uint64(1)) & mask
        rows[i] = slots[2 * h + 1]
        found += rows[i] != EMPTY
    return found


@kernel
def insert(slots: NDArray[np.int64], keys: NDArray[np.int64], next_row: int, rows: NDArray[np.int64]) -> int:
    """rows[i] = row of keys[i], the next free one if the id is new; returns the next free row afterwards."""
    mask = np.uint64(slots.size // 2 - 1)
    for i in range(keys.size):
        h = mix(keys[i]) & mask
        while slots[2 * h + 1] != EMPTY and slots[2 * h] != keys[i]:
            h = (h + np.uint64(1)) & mask
        if slots[2 * h + 1] == EMPTY:
            slots[2 * h] = keys[i]
            slots[2 * h + 1] = next_row
            next_row += 1
        rows[i] = slots[2 * h + 1]
    return next_row
