"""The index of one partition: linear probing, with the entries in falling order of their codes.

The order pays four times. An absent key is known as soon as a smaller code is met, so a miss costs no more than a hit.
The home of a code is its share of all codes times the capacity, so a larger capacity keeps the order, and a partition
grows in place: pack everything at the end of the new range, then lay it out from the front; both passes are sequential,
and nothing is copied elsewhere. Expiry is one pass from the front. And a code is a cursor: a dump can stop, let the
table grow, and go on where it was.

Falling, because a free slot is zero: it then ends a search like any smaller code, without a test of its own. Homes are
the first slots of cache lines, so a search compares whole lines.

All of these but `find` need the partition's latch (latch.py). A partition's range always ends in a free slot.
"""

import numpy as np

from megalith.ps.kernels._jit import inlined, kernel
from megalith.ps.kernels.codes import home_of
from megalith.ps.kernels.dtypes import I64
from megalith.ps.kernels.layout import CAPACITY, FIRST, GROW_AT, GROWTH, PARTITIONS, RECORD, ROOM, SPILL, U64, USED, Int

_ROW_MASK = np.uint64(0x7FFFFFFF)
TOUCHED = np.uint64(0x80000000)
_LOW = _ROW_MASK | TOUCHED
_TIME_SHIFT = np.uint64(32)
_ZERO = np.uint64(0)
_1, _2, _4, _6, _8 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(6), np.uint64(8)  # words of a line


@inlined
def row_of(entry: np.uint64) -> Int:
    """The row in a slot's second word; -1 for a free slot."""
    return np.int64(entry & _ROW_MASK) - 1


@inlined
def time_of(entry: np.uint64) -> Int:
    return np.int64(entry >> _TIME_SHIFT)


@inlined
def entry_of(row: Int, time_s: Int) -> np.uint64:
    return (np.uint64(time_s) << _TIME_SHIFT) | np.uint64(row + 1)


@inlined
def renewed(entry: np.uint64, time_s: Int) -> np.uint64:
    """The entry with another time."""
    return (np.uint64(time_s) << _TIME_SHIFT) | (entry & _LOW)


@inlined
def find(slots: U64, home: Int, code: np.uint64) -> Int:
    """The slot of a code, or the one where it belongs; `holds` tells which.

    A whole cache line is compared without a branch: 43 M probes/s of 10 M keys at 0.67 full. Slot by slot, where
    the branch that ends the search is mispredicted, it was 31.
    """
    at = np.uint64(2 * home)
    while True:
        larger = (
            np.int64(slots[at] > code)
            + np.int64(slots[at + _2] > code)
            + np.int64(slots[at + _4] > code)
            + np.int64(slots[at + _6] > code)
        )
        if larger < 4:
            return np.int64(at >> _1) + larger
        at += _8


@inlined
def holds(slots: U64, slot: Int, code: np.uint64) -> bool:
    return bool(slots[2 * slot] == code and slots[2 * slot + 1] != _ZERO)


@inlined
def insert(slots: U64, slot: Int, code: np.uint64, entry: np.uint64) -> None:
    """Put an absent key at its slot; the rest of its cluster moves up by one."""
    while slots[2 * slot + 1] != _ZERO:
        code, slots[2 * slot] = slots[2 * slot], code
        entry, slots[2 * slot + 1] = slots[2 * slot + 1], entry
        slot += 1
    slots[2 * slot] = code
    slots[2 * slot + 1] = entry


@inlined
def is_tight(slots: U64, parts: I64, record: Int, more: Int) -> bool:
    """Whether the partition has to grow before `more` keys come: too full, or a cluster near the end of its range."""
    last = parts[record + FIRST] + parts[record + CAPACITY] + SPILL - 1
    is_full = parts[record + USED] + more > np.int64(parts[record + CAPACITY] * GROW_AT)
    return bool(is_full or slots[2 * (last - more) + 1] != _ZERO)


@kernel
def may_grow(parts: I64, record: Int, most_slots: Int) -> bool:
    """Whether one more growth of the partition leaves all of them within `most_slots`."""
    slots = np.int64(parts[record + CAPACITY] * (GROWTH - 1))
    for partition in range(PARTITIONS):
        slots += parts[partition * RECORD + CAPACITY] + SPILL
    return bool(slots <= most_slots)


@kernel
def pack(slots: U64, first: Int, old_end: Int, new_end: Int) -> Int:
    """Move the entries of [first, old_end) to the end of [first, new_end), in order; the first slot of them."""
    write = new_end
    for slot in range(old_end - 1, first - 1, -1):
        # Without a branch: a free slot writes its zeros where the next entry goes. The branch would be mispredicted for
        # every third slot.
        code, entry = slots[2 * slot], slots[2 * slot + 1]
        slots[2 * slot] = _ZERO
        slots[2 * slot + 1] = _ZERO
        slots[2 * write - 2] = code
        slots[2 * write - 1] = entry
        write -= np.int64(entry != _ZERO)
    return write


@kernel
def lay_out(slots: U64, parts: I64, record: Int, packed: Int, end: Int) -> bool:
    """Move packed entries to their homes, in order. False if they run over the end; the rest is then still packed."""
    free = parts[record + FIRST]
    for slot in range(packed, end):
        code, entry = slots[2 * slot], slots[2 * slot + 1]
        free = max(free, home_of(parts, record, code))
        if free > slot:
            return False
        slots[2 * slot] = _ZERO
        slots[2 * slot + 1] = _ZERO
        slots[2 * free] = code
        slots[2 * free + 1] = entry
        free += 1
    return True


@inlined
def grown(capacity: Int) -> Int:
    """The next capacity, in whole cache lines."""
    return np.int64(capacity * GROWTH) // 4 * 4


@kernel
def stretch(slots: U64, parts: I64, record: Int, more: Int) -> bool:
    """Grow the partition in place until `more` keys fit; False if the addresses do not suffice.

    Keys chosen to collide can make one growth too little; it then goes on, and at the end of the addresses back.
    """
    first, before = parts[record + FIRST], parts[record + CAPACITY]
    need = np.int64((parts[record + USED] + more) / GROW_AT) + 1
    old, new = before, grown(before)
    while new < need:  # by whole steps, so that partitions keep growing at different times
        new = grown(new)
    while new <= parts[record + ROOM]:
        end = first + new + SPILL - 1  # the last slot stays free
        packed = pack(slots, first, first + old + SPILL - 1, end)
        parts[record + CAPACITY] = new
        if lay_out(slots, parts, record, packed, end) and not is_tight(slots, parts, record, more):
            return True
        old, new = new, grown(new)
    if old != before:
        parts[record + CAPACITY] = before
        end = first + old + SPILL - 1
        lay_out(slots, parts, record, pack(slots, first, end, end), end)
    return False
