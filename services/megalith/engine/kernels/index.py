"""The index of one partition: cache lines of four slots, searched from the home line of a code on.

An entry is in its home line or, if that was full, in the first line after it that was not. So a
search ends at its code or at a line that is not full, an insert writes one slot and moves nothing,
and the entries of a line fill its slots from the first one on. (With the entries in the order of
their codes a search for an absent id ends sooner, but an insert moves the rest of its cluster: 155
ns to insert an id instead of 105, at 10 M.)

The home of a code is its share of all codes times the number of lines, counted down from the last
line. So a partition grows in place, towards lower addresses: homes only move down, and one pass
from the first line to the last takes every entry to its new home, past nothing that has still to
move. Expiry is the same pass. And a code is a cursor: a dump goes by homes, can stop, let the table
grow, and go on where it was.

A partition grows when it is 0.8 full, and also when ids come to lie far from their homes because
their codes are close together. That happens when rows are loaded in the order of their codes, which
is the order of a dump: the first ones all belong near the end of the range. Then it grows at once
to the capacity at which their homes are far enough apart. Codes that no capacity keeps apart exist
only for someone who knows the secret. They are kept as well, in a longer spill and with longer
searches; the first that are refused are those beyond the MOST_SPILL slots of a spill.

All of these but `find` need the partition's latch (latch.py).
"""

import numpy as np

from megalith.engine.kernels.codes import home_of, share_of
from megalith.engine.kernels.latch import drop_latch, take_latch
from megalith.engine.kernels.layout import (
    CAPACITY,
    FAR,
    FAR_AWAY,
    GROW_AT,
    GROWTH,
    LAST,
    LINE,
    MOST_SPILL,
    PAGE,
    PARTITIONS,
    POOL_GROWING,
    POOL_SLOTS,
    RECORD,
    ROOM,
    SPILL,
    U64,
    UNLIMITED,
    USED,
    Int,
)
from megalith.engine.kernels.matching import matches, trailing_zeros
from megalith.kernels.dtypes import I64
from megalith.kernels.jit import inlined, kernel

_ROW_MASK = np.uint64(0x7FFFFFFF)
TOUCHED = np.uint64(0x80000000)
_LOW = _ROW_MASK | TOUCHED
_TIME_SHIFT = np.uint64(32)
_ZERO = np.uint64(0)
_1, _2, _3, _4, _5, _6, _7, _8 = (np.uint64(i) for i in range(1, 9))  # words of a line
# of the words of a line
_CODES = 0b01010101
_LAST_CODE = 0b01000000

SAMPLE = 32  # entries that are looked at to tell how close together codes are
ROOM_SCRATCH = SAMPLE  # words of scratch that `make_room` needs: of a sample, or of a line


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
    return parts[record + LAST] + LINE + parts[record + SPILL]


@inlined
def find(slots: U64, home: Int, code: np.uint64) -> Int:
    """The slot of a code, or one of the line that ends the search, because it is not full.

    `holds` tells which.

    A whole cache line is compared without a branch: 43 M probes/s of 10 M ids at 0.67 full. Slot
    by slot, where the branch that ends the search is mispredicted, it was 31.
    """
    at = np.uint64(2 * home)
    while True:
        # A free slot looks like code 0. Entries come first in a line, so the first match is the
        # right one.
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
    """Put an absent id into the first line from `line` on that is not full."""
    while is_full(slots, line):
        line += LINE
    at = np.uint64(2 * (line + entries_in(slots, line)))
    slots[at] = code
    slots[at + _1] = entry


@inlined
def beyond(slots: U64, line: Int) -> Int:
    """The next line if this one is full, or else this one.

    Without a branch, which would be mispredicted.
    """
    return line + LINE * np.int64(is_full(slots, line))


@kernel
def remove(slots: U64, parts: I64, record: Int, slot: Int) -> None:
    """Free a slot.

    An entry that had once found its line full takes the place, and so on from where that one was.
    """
    while slot >= 0:
        line = line_of(slot)
        here = line_of(slot)
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
    """Move the entries of a line to taken[0..8), two words each; how many they are.

    A line without any is only read. Writing to it would take memory for a page that nothing was
    ever put on.
    """
    count = entries_in(slots, line)
    if count == 0:
        return count
    at = np.uint64(2 * line)
    for word in range(_8):
        taken[word] = slots[at + word]
        slots[at + word] = _ZERO
    return count


@inlined
def is_spilt(slots: U64, parts: I64, record: Int, more: Int) -> bool:
    """Whether `more` ids could reach the end of the partition's range."""
    return bool(slots[2 * spilt_line(parts, record, more) + 1] != _ZERO)


@inlined
def spilt_line(parts: I64, record: Int, more: Int) -> Int:
    """The line that must be free for `more` ids not to reach the last line, which stays free."""
    return line_of(parts[record + LAST] + parts[record + SPILL] - more)


@inlined
def farther(far: Int, slot: Int, home: Int) -> Int:
    """`far`, or the slot that was filled if it is far from its id's home."""
    return slot if slot - home > FAR_AWAY else far


@kernel
def most_capacity(parts: I64, record: Int, most_slots: Int) -> Int:
    """How large the partition may become.

    It stays within its addresses, and all partitions within `most_slots`.
    """
    left = most_slots + parts[record + CAPACITY]
    for partition in range(PARTITIONS):
        left -= parts[partition * RECORD + CAPACITY] + parts[partition * RECORD + SPILL]
    return min(left, parts[record + ROOM])


@inlined
def grown(parts: I64, record: Int, capacity: Int, is_rounded: bool) -> Int:
    """The next capacity, in whole cache lines.

    If rounded, with the whole of the last huge page that it needs.
    """
    capacity = np.int64(capacity * GROWTH) // LINE * LINE
    if is_rounded and capacity >= PAGE:
        capacity += (parts[record + LAST] + LINE - capacity) % PAGE
    return capacity


@kernel
def stretch(slots: U64, parts: I64, record: Int, begin: Int, taken: U64) -> None:
    """Take all entries to their homes, which a new capacity moved.

    `begin` was the first slot of the old range.
    """
    for line in range(begin, end_of(parts, record), LINE):
        count = take_line(slots, line, taken)
        for i in range(count):
            code = taken[2 * i]
            entry = taken[2 * i + 1]
            insert(slots, home_of(parts, record, code), code, entry)


@kernel
def grow(slots: U64, parts: I64, record: Int, need: Int, pool: I64, taken: U64) -> bool:
    """Give the partition a capacity of `need` or more; whether budget and addresses allow it.

    Slots are claimed by one thread at a time, so that several which grow at once stay within the
    budget together.
    """
    begin = begin_of(parts, record)
    capacity = parts[record + CAPACITY]
    while capacity < need:  # by whole steps, so that partitions keep growing at different times
        capacity = grown(parts, record, capacity, pool[POOL_SLOTS] == UNLIMITED)
    take_latch(pool, POOL_GROWING)
    is_allowed = capacity <= most_capacity(parts, record, pool[POOL_SLOTS])
    if is_allowed:
        parts[record + CAPACITY] = capacity
    drop_latch(pool, POOL_GROWING)
    if is_allowed:
        stretch(slots, parts, record, begin, taken)
    return bool(is_allowed)


@kernel
def lengthen(parts: I64, record: Int, pool: I64) -> bool:
    """Double the spill; whether budget and addresses allow it."""
    more = parts[record + SPILL]
    take_latch(pool, POOL_GROWING)
    is_allowed = 2 * more <= MOST_SPILL and parts[record + CAPACITY] + more <= most_capacity(
        parts, record, pool[POOL_SLOTS]
    )
    if is_allowed:
        parts[record + SPILL] += more
    drop_latch(pool, POOL_GROWING)
    return bool(is_allowed)


@kernel
def apart(slots: U64, parts: I64, record: Int, first: Int, last: Int, sample: U64) -> Int:
    """The capacity at which the entries of the lines first..last would just fit where they belong.

    0 if no capacity of the partition would do, or if a line is empty: an id is far from its home
    across full lines only, so there is no such id any more. It is an estimate from the middle half
    of a sample: entries that came from elsewhere, or codes that were made to mislead it, change it
    little.
    """
    for i in range(SAMPLE):
        slot = line_of(first + (last - first) * i // SAMPLE)
        if slots[2 * slot + 1] == _ZERO:
            return 0
        share = share_of(slots[2 * slot])
        at = i
        while at > 0 and sample[at - 1] > share:
            sample[at] = sample[at - 1]
            at -= 1
        sample[at] = share
    low = SAMPLE // 4
    high = SAMPLE - SAMPLE // 4 - 1
    spread = np.float64(sample[high] - sample[low]) / 2.0**32
    # The middle half holds this share of the entries, on `spread` of the codes.
    entries = (last - first) * (high - low) / SAMPLE
    if spread * np.float64(parts[record + ROOM]) < entries:
        return 0
    return np.int64(entries / spread) + 1


@kernel
def make_room(slots: U64, parts: I64, record: Int, more: Int, pool: I64, scratch: U64) -> bool:
    """Let `more` ids fit, growing if need be; whether they do.

    `scratch` has ROOM_SCRATCH words.
    """
    need = np.int64((parts[record + USED] + more) / GROW_AT) + 1
    if need > parts[record + CAPACITY] and not grow(slots, parts, record, need, pool, scratch):
        return False
    far = parts[record + FAR]
    if far != 0:
        parts[record + FAR] = 0
        spread_out(slots, parts, record, far, pool, scratch)
    while is_spilt(slots, parts, record, more):
        far = spilt_line(parts, record, more)
        if not spread_out(slots, parts, record, far, pool, scratch) and not lengthen(
            parts, record, pool
        ):
            return False
    return True


@kernel
def spread_out(slots: U64, parts: I64, record: Int, far: Int, pool: I64, scratch: U64) -> bool:
    """Grow so that ids get nearer to their homes, if the one in slot `far` shows that this helps.

    Whether it did.
    """
    home = home_of(parts, record, slots[2 * far])
    if far - home < SAMPLE * LINE:  # erased or moved since it was noted
        return False
    need = apart(slots, parts, record, home, far, scratch)
    if need <= parts[record + CAPACITY]:
        return False
    return bool(grow(slots, parts, record, need, pool, scratch))
