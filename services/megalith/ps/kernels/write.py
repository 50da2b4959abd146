"""Writing rows by key: find or make each row, then act on it, under the latch of one partition at a time."""

from typing import Any, NamedTuple

import numpy as np

from megalith.ps.kernels._jit import inlined, kernel
from megalith.ps.kernels.actions import perform
from megalith.ps.kernels.codes import code_of, home_of, keys_of, partition_of
from megalith.ps.kernels.copying import copy_floats
from megalith.ps.kernels.dtypes import F32, I64, U8, Bools
from megalith.ps.kernels.gather import prefetch_row
from megalith.ps.kernels.grouping import group, part_length
from megalith.ps.kernels.index import (
    TOUCHED,
    entry_of,
    find,
    holds,
    insert,
    is_tight,
    may_grow,
    renewed,
    row_of,
    stretch,
)
from megalith.ps.kernels.latch import enter, leave
from megalith.ps.kernels.layout import BLOCK, PARTITIONS, POOL_SLOTS, RECORD, U64, USED, Index, Int, Rows
from megalith.ps.kernels.pool import give_rows, take_rows
from megalith.ps.kernels.prefetch import prefetch
from megalith.ps.kernels.segments import fill_segments

# What became of a position of the batch.
EXISTING = 0
CREATED = 1
REFUSED = 2  # absent, and the table is full
BARRED = 3  # absent, and the caller did not admit it


class Notes(NamedTuple):
    """What a write tells its caller.

    outcome   what became of each position
    touched   empty, or as long as the batch: then rows get the touched bit, and the codes of those that did not have
              it come here
    tally     one element: how many those are
    """

    outcome: U8
    touched: U64
    tally: I64


@inlined
def mark_of(notes: Notes) -> np.uint64:
    """The bit that written rows get."""
    return TOUCHED if notes.touched.size else np.uint64(0)


@inlined
def note_touch(notes: Notes, code: np.uint64) -> None:
    notes.touched[notes.tally[0]] = code
    notes.tally[0] += 1


@kernel
def write(
    index: Index,
    rows: Rows,
    fills: Any,
    action: Any,
    keys: I64,
    inputs: F32,
    times: I64,
    admitted: Bools,
    notes: Notes,
) -> Int:
    """Act on the row of every key, in the order of the batch for equal keys; how many were absent.

    Absent keys get a row first, if they may.
    `times` and `admitted` have one element for each position or a single one for all. A partition is latched for one
    block of ids (3 us) at a time. Writers begin at the partition of their first key, so that they seldom meet.
    """
    if keys.size == 0:
        return 0
    length = part_length(keys.size, inputs.shape[1])
    codes, positions = np.empty(length, np.uint64), np.empty(length, np.int64)
    ordered, bounds = np.empty((length, inputs.shape[1]), np.float32), np.empty(PARTITIONS + 1, np.int64)
    starts, fresh, homes = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    first, num_absent = partition_of(code_of(keys[0])), 0
    for part in range(0, keys.size, length):
        size = min(length, keys.size - part)
        group(keys, inputs, part, size, codes, positions, ordered, bounds)
        for turn in range(PARTITIONS):
            partition = (first + turn) % PARTITIONS
            record, end = partition * RECORD, bounds[partition + 1]
            for begin in range(bounds[partition], end, BLOCK):
                count = min(BLOCK, end - begin)
                block, places = codes[begin : begin + count], positions[begin : begin + count]
                enter(index.parts, record)
                absent = locate(index, rows, record, block, places, times, starts, notes)
                if absent:
                    num_absent += absent
                    create(index, rows, fills, record, block, places, times, admitted, starts, fresh, notes)
                # The next block's misses run while this one's rows are at work.
                ahead = min(BLOCK, size - begin - count)
                for i in range(ahead):
                    code = codes[begin + count + i]
                    homes[i] = home_of(index.parts, partition_of(code) * RECORD, code)
                for i in range(ahead):
                    prefetch(index.slots, 2 * homes[i])
                    if absent:  # an insert moves the rest of its cluster, which often reaches into the next lines
                        prefetch(index.slots, 2 * homes[i] + 8)
                        prefetch(index.slots, 2 * homes[i] + 16)
                        prefetch(index.slots, 2 * homes[i] + 24)
                perform(action, rows, starts[:count], block, ordered[begin : begin + count])
                leave(index.parts, record)
    return num_absent


@inlined
def at(array: Any, i: Int) -> Any:
    """array[i], or its only element."""
    return array[i if array.size > 1 else 0]


@kernel
def locate(
    index: Index, rows: Rows, record: Int, codes: U64, places: I64, times: I64, starts: I64, notes: Notes
) -> Int:
    """Find and fetch the rows of a block and note the time of those that exist; the number of absent ones."""
    slots, width, absent, mark = index.slots, rows.template.size, 0, mark_of(notes)
    for i in range(codes.size):
        slot = find(slots, home_of(index.parts, record, codes[i]), codes[i])
        if holds(slots, slot, codes[i]):
            entry = slots[2 * slot + 1]
            starts[i] = row_of(entry) * width
            slots[2 * slot + 1] = renewed(entry, at(times, places[i])) | mark
            if mark & ~entry:
                note_touch(notes, codes[i])
            notes.outcome[places[i]] = EXISTING
        else:
            starts[i] = -1
            absent += 1
    # In a loop of its own: a fetch waits for its page's address, and a short loop has more of them waiting at once.
    for i in range(codes.size):
        prefetch_row(rows.values, max(0, starts[i]), width)
    return absent


@kernel
def create(
    index: Index,
    rows: Rows,
    fills: Any,
    record: Int,
    codes: U64,
    places: I64,
    times: I64,
    admitted: Bools,
    starts: I64,
    fresh: I64,
    notes: Notes,
) -> None:
    """Make the rows of a block whose starts are -1, as far as they are admitted and there is room."""
    wanted, outcome, mark = 0, notes.outcome, mark_of(notes)
    for i in range(codes.size):
        fresh[i] = starts[i]
        if starts[i] < 0:
            outcome[places[i]] = REFUSED if at(admitted, places[i]) else BARRED
            wanted += at(admitted, places[i])
    claimed = np.empty(wanted, np.int64)
    granted, used = take_rows(rows, wanted, claimed), 0
    # Rows first: a full table must not grow its index for keys that it then refuses.
    is_room = granted > 0
    if is_room and is_tight(index.slots, index.parts, record, granted):
        is_room = may_grow(index.parts, record, rows.pool[POOL_SLOTS])
        is_room = is_room and stretch(index.slots, index.parts, record, granted)
    for i in range(codes.size):
        if starts[i] >= 0 or not at(admitted, places[i]):
            continue
        slot = find(index.slots, home_of(index.parts, record, codes[i]), codes[i])
        if holds(index.slots, slot, codes[i]):  # the same key a few positions before
            starts[i] = row_of(index.slots[2 * slot + 1]) * rows.template.size
            outcome[places[i]] = EXISTING
        elif is_room and used < granted:
            insert(index.slots, slot, codes[i], entry_of(claimed[used], at(times, places[i])) | mark)
            if mark:
                note_touch(notes, codes[i])
            starts[i] = claimed[used] * rows.template.size
            outcome[places[i]] = CREATED
            used += 1
    index.parts[record + USED] += used
    begin(rows, fills, codes, starts, fresh[: codes.size], places, outcome)
    give_rows(rows, claimed[used:granted])


@kernel
def begin(rows: Rows, fills: Any, codes: U64, starts: I64, fresh: I64, places: I64, outcome: U8) -> None:
    """Give the rows made in this block their first values; `fresh` is scratch."""
    for i in range(fresh.size):
        fresh[i] = -1
        if outcome[places[i]] == CREATED:
            fresh[i] = starts[i]
            copy_floats(rows.template, 0, rows.values, starts[i], rows.template.size)
    if len(fills) > 0:
        fill_segments(fills, rows.values, fresh, keys_of(codes))
