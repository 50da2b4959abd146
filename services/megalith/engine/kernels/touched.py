"""An exact insert-only set of int64 ids.

It is a list in order of insertion, and an open-addressing index over it.

slots    ids at the place their hash asks for or later, 0 = empty; a power of two of them
listed   the distinct ids in order of insertion
counts   [SIZE, HAS_ZERO]: how many are listed, and whether id 0, which no slot can show, is one
"""

import numpy as np

from megalith.engine.kernels.codes import home_of
from megalith.engine.kernels.grouping import group
from megalith.engine.kernels.index import TOUCHED, begin_of, end_of, find, holds
from megalith.engine.kernels.latch import enter, leave
from megalith.engine.kernels.layout import BLOCK, PARTITIONS, RECORD, Index
from megalith.engine.kernels.prefetch import prefetch
from megalith.kernels.dtypes import I64
from megalith.kernels.jit import kernel
from megalith.kernels.mixing import mix

SIZE = 0
HAS_ZERO = 1
COUNTS = 2
# A probe is one cache miss. With 2 M ids in a 32 MB index, 16 in flight give 60 M ids/s, 8 give
# 45, none 25.
AHEAD = 16


@kernel
def home(row_id: np.int64, multiplier: np.uint64, shift: np.uint64) -> np.uint64:
    """The slot at which the search for an id begins.

    The multiplier is odd and secret: nobody can choose ids that begin at the same slot (codes.py
    says why).
    """
    return np.uint64((mix(np.uint64(row_id)) * multiplier) >> shift)


@kernel
def shift_of(slots: I64) -> np.uint64:
    """How far a product is shifted to be a slot; there are a power of two of them, at least two."""
    bits = 1
    while (1 << bits) < slots.size:
        bits += 1
    return np.uint64(64 - bits)


@kernel
def add(
    ids: I64, capacity: int, multiplier: np.uint64, slots: I64, listed: I64, counts: I64
) -> int:
    """Insert ids in order; whenever more than `capacity` are held before one, drop them all.

    Returns the dropped.
    """
    mask = np.uint64(slots.size - 1)
    shift = shift_of(slots)
    size = counts[SIZE]
    dropped = 0
    for i in range(ids.size):
        if i + AHEAD < ids.size:
            prefetch(slots, home(ids[i + AHEAD], multiplier, shift))
        if size > capacity:
            counts[SIZE] = size
            clear(multiplier, slots, listed, counts)
            dropped += size
            size = 0
        row_id = ids[i]
        if row_id == 0:
            if counts[HAS_ZERO] == 0:
                counts[HAS_ZERO] = 1
                listed[size] = 0
                size += 1
            continue
        slot = home(row_id, multiplier, shift)
        while slots[slot] != 0 and slots[slot] != row_id:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] == 0:
            slots[slot] = row_id
            listed[size] = row_id
            size += 1
    counts[SIZE] = size
    return dropped


@kernel
def clear(multiplier: np.uint64, slots: I64, listed: I64, counts: I64) -> None:
    """Forget every id.

    A small set empties the slots its ids lead to; past one in eight, writing all of them in order
    is faster. Both leave nothing but zeros: every id sits between its home and the next empty
    slot, and all of those are wiped.
    """
    size = counts[SIZE]
    if size * 8 > slots.size:
        slots[:] = 0
    else:
        mask = np.uint64(slots.size - 1)
        shift = shift_of(slots)
        for i in range(size):
            if i + AHEAD < size:
                prefetch(slots, home(listed[i + AHEAD], multiplier, shift))
            slot = home(listed[i], multiplier, shift)
            while slots[slot] != 0:
                slots[slot] = 0
                slot = (slot + np.uint64(1)) & mask
    counts[:] = 0


@kernel
def lift(index: Index, ids: I64) -> None:
    """Take the touched bit from the rows of `ids`, as far as they exist."""
    codes = np.empty(ids.size, np.uint64)
    positions = np.empty(ids.size, np.int64)
    bounds = np.empty(PARTITIONS + 1, np.int64)
    nothing = np.empty((ids.size, 0), np.float32)
    group(index.secret, ids, nothing, 0, ids.size, codes, positions, nothing, bounds)
    for partition in range(PARTITIONS):
        record = partition * RECORD
        end = bounds[partition + 1]
        for begin in range(bounds[partition], end, BLOCK):
            block = codes[begin : min(begin + BLOCK, end)]
            enter(index.parts, record)
            for code in block:
                prefetch(index.slots, 2 * home_of(index.parts, record, code))
            for code in block:
                slot = find(index.slots, home_of(index.parts, record, code), code)
                if holds(index.slots, slot, code):
                    index.slots[2 * slot + 1] &= ~TOUCHED
            leave(index.parts, record)


@kernel
def lift_all(index: Index) -> None:
    """Take the touched bit from every row."""
    for partition in range(PARTITIONS):
        record = partition * RECORD
        enter(index.parts, record)
        for slot in range(begin_of(index.parts, record), end_of(index.parts, record)):
            if (
                index.slots[2 * slot + 1] & TOUCHED
            ):  # nothing is written to pages that nothing was ever put on
                index.slots[2 * slot + 1] &= ~TOUCHED
        leave(index.parts, record)
