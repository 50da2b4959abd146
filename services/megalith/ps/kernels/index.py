"""The index of one partition: cache lines of four slots, searched from the home line of a code on.

An entry is in its home line or, if that was full, in the first line after it that was not. So a search ends at its code
or at a line that is not full, an insert writes one slot and moves nothing, and the entries of a line fill its slots
from the first one on. (With the entries in the order of their codes a search for an absent key ends sooner, but an
insert moves the rest of its cluster: 155 ns to insert an id instead of 105, at 10 M.)

The home of a code is its share of all codes times the number of lines, counted down from the last line. So a partition
grows in place, towards lower addresses: homes only move down, and one pass from the first line to the last takes every
entry to its new home, past nothing that has still to move. Expiry is the same pass. And a code is a cursor: a dump goes
by homes, can stop, let the table grow, and go on where it was.

All of these but `find` need the partition's latch (latch.py).
"""

import numpy as np

from megalith.ps.kernels._jit import inlined, kernel
from megalith.ps.kernels.codes import home_of
from megalith.ps.kernels.dtypes import I64
from megalith.ps.kernels.layout import (
    CAPACITY,
    GROW_AT,
    GROWTH,
    LAST,
    LEAST_FULL,
    LINE,
    PAGE,
    PARTITIONS,
    RECORD,
    ROOM,
    SPILL,
    U64,
    UNLIMITED,
    USED,
    Int,
)
from megalith.ps.kernels.matching import matches, trailing_zeros

_ROW_MASK = np.uint64(0x7FFFFFFF)
TOUCHED = np.uint64(0x80000000)
_LOW = _ROW_MASK | TOUCHED
_TIME_SHIFT = np.uint64(32)
_ZERO = np.uint64(0)
_1, _2, _3, _4, _5, _6, _7, _8 = (np.uint64(i) for i in range(1, 9))  # words of a line
_CODES, _LAST_CODE = 0b01010101, 0b01000000  # of the words of a line


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
    """The entry with a later time; one that is not later changes nothing."""
    latest = max(time_of(entry), np.int64(time_s))
    return (np.uint64(latest) << _TIME_SHIFT) | (entry & _LOW)


@inlined
def begin_of(parts: I64, record: Int) -> Int:
    """The first slot of a partition's range."""
    return parts[record + LAST] + LINE - parts[record + CAPACITY]


@inlined
def end_of(parts: I64, record: Int) -> Int:
    """The slot after a partition's range."""
    return parts[record + LAST] + LINE + SPILL


@inlined
def find(slots: U64, home: Int, code: np.uint64) -> Int:
    """The slot of a code, or one of the line that ends the search, because it is not full; `holds` tells which.

    A whole cache line is compared without a branch: 43 M probes/s of 10 M keys at 0.67 full. Slot by slot, where
    the branch that ends the search is mispredicted, it was 31.
    """
    at = np.uint64(2 * home)
    while True:
        # A free slot looks like code 0. Entries come first in a line, so the first match is the right one.
        found = matches(slots, at, code) & _CODES
        if found | np.int64(slots[at + _7] == _ZERO):
            return np.int64(at >> _1) + (trailing_zeros(found | _LAST_CODE) >> 1)
        at += _8


@inlined
def holds(slots: U64, slot: Int, code: np.uint64) -> bool:
    return bool(slots[2 * slot] == code and slots[2 * slot + 1] != _ZERO)


@inlined
def line_of(slot: Int) -> Int:
    """The first slot of a slot's line."""
    return slot & -LINE


@inlined
def is_full(slots: U64, line: Int) -> bool:
    """Whether the line that begins at a slot is full."""
    return bool(slots[np.uint64(2 * line) + _7] != _ZERO)


@inlined
def entries_in(slots: U64, line: Int) -> Int:
    """How many entries the line that begins at a slot has."""
    at = np.uint64(2 * line)
    return (
        np.int64(slots[at + _1] != _ZERO)
        + np.int64(slots[at + _3] != _ZERO)
        + np.int64(slots[at + _5] != _ZERO)
        + np.int64(slots[at + _7] != _ZERO)
    )


@inlined
def insert(slots: U64, line: Int, code: np.uint64, entry: np.uint64) -> None:
    """Put an absent key into the first line from `line` on that is not full."""
    while is_full(slots, line):
        line += LINE
    at = np.uint64(2 * (line + entries_in(slots, line)))
    slots[at] = code
    slots[at + _1] = entry


@inlined
def beyond(slots: U64, line: Int) -> Int:
    """The next line if this one is full, or else this one; without a branch, which would be mispredicted."""
    return line + LINE * np.int64(is_full(slots, line))


@kernel
def remove(slots: U64, parts: I64, record: Int, slot: Int) -> None:
    """Free a slot. An entry that had once found its line full takes the place, and so on from where that one was."""
    while slot >= 0:
        line, here = line_of(slot), line_of(slot)
        last = line + entries_in(slots, line) - 1
        is_passed = is_full(slots, line)
        slots[2 * slot], slots[2 * slot + 1] = slots[2 * last], slots[2 * last + 1]
        slots[2 * last], slots[2 * last + 1] = _ZERO, _ZERO
        slot = -1
        while is_passed and slot < 0:
            here += LINE
            is_passed = is_full(slots, here)
            for other in range(here, here + entries_in(slots, here)):
                if home_of(parts, record, slots[2 * other]) <= line:
                    slot = other
        if slot >= 0:
            slots[2 * last], slots[2 * last + 1] = slots[2 * slot], slots[2 * slot + 1]


@inlined
def take_line(slots: U64, line: Int, taken: U64) -> Int:
    """Move the entries of a line to taken[0..8), two words each; how many they are."""
    count = entries_in(slots, line)
    at = np.uint64(2 * line)
    for word in range(_8):
        taken[word] = slots[at + word]
        slots[at + word] = _ZERO
    return count


@inlined
def is_spilt(slots: U64, parts: I64, record: Int, more: Int) -> bool:
    """Whether `more` keys could reach the end of the partition's range."""
    end = parts[record + LAST] + SPILL  # the line that stays free
    return bool(slots[2 * line_of(end - more) + 1] != _ZERO)


@kernel
def most_capacity(parts: I64, record: Int, most_slots: Int) -> Int:
    """How large the partition may become, within its addresses, and with all partitions within `most_slots`."""
    left = most_slots + parts[record + CAPACITY]
    for partition in range(PARTITIONS):
        left -= parts[partition * RECORD + CAPACITY] + SPILL
    return min(left, parts[record + ROOM])


@inlined
def grown(parts: I64, record: Int, capacity: Int, is_rounded: bool) -> Int:
    """The next capacity, in whole cache lines; if rounded, with the whole of the last huge page that it needs."""
    capacity = np.int64(capacity * GROWTH) // LINE * LINE
    if is_rounded and capacity >= PAGE:
        capacity += (parts[record + LAST] + LINE - capacity) % PAGE
    return capacity


@kernel
def stretch(slots: U64, parts: I64, record: Int, capacity: Int, taken: U64) -> None:
    """Give the partition a larger capacity; `taken` is scratch of a line."""
    begin = begin_of(parts, record)
    parts[record + CAPACITY] = capacity
    for line in range(begin, end_of(parts, record), LINE):
        for i in range(take_line(slots, line, taken)):
            insert(slots, home_of(parts, record, taken[2 * i]), taken[2 * i], taken[2 * i + 1])


@kernel
def make_room(slots: U64, parts: I64, record: Int, more: Int, most_slots: Int, taken: U64) -> bool:
    """Let `more` keys fit, growing if need be; whether they do. `taken` is scratch of a line.

    Keys that are made to collide at the end of the range may not fit, however far it grows: then it does not.
    """
    capacity, is_rounded = parts[record + CAPACITY], most_slots == UNLIMITED
    need = np.int64((parts[record + USED] + more) / GROW_AT) + 1
    if is_spilt(slots, parts, record, more) and parts[record + USED] > capacity * LEAST_FULL:
        need = max(need, capacity + 1)
    if need > capacity:
        while capacity < need:  # by whole steps, so that partitions keep growing at different times
            capacity = grown(parts, record, capacity, is_rounded)
        if capacity > most_capacity(parts, record, most_slots):
            return False
        stretch(slots, parts, record, capacity, taken)
    return not is_spilt(slots, parts, record, more)
