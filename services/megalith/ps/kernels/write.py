"""Writing rows by key: find or make each row, then act on it, under the latch of one partition at a time."""

from typing import Any

import numpy as np

from megalith.ps.kernels._jit import inlined, kernel
from megalith.ps.kernels.actions import perform
from megalith.ps.kernels.codes import code_of, home_of, partition_of
from megalith.ps.kernels.copying import copy_floats
from megalith.ps.kernels.dtypes import F32, I64, U8, Bools
from megalith.ps.kernels.gather import prefetch_row
from megalith.ps.kernels.grouping import group
from megalith.ps.kernels.index import entry_of, find, holds, insert, is_tight, may_grow, row_of, stretch
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


@kernel
def write(
    index: Index, rows: Rows, fills: Any, action: Any, keys: I64, inputs: F32, times: I64, admitted: Bools, outcome: U8
) -> Int:
    """Act on the row of every key, in the order of the batch for equal keys; how many were absent.

    Absent keys get a row first, if they may; `outcome` tells what became of each position.
    `times` and `admitted` have one element for each position or a single one for all. A partition is latched for one
    block of ids (3 us) at a time. Writers begin at the partition of their first key, so that they seldom meet.
    """
    if keys.size == 0:
        return 0
    codes, positions = np.empty(keys.size, np.uint64), np.empty(keys.size, np.int64)
    bounds = np.empty(PARTITIONS + 1, np.int64)
    group(keys, codes, positions, bounds)
    starts, fresh = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    flat, width = inputs.reshape(-1), inputs.shape[1]
    scratch = np.empty((BLOCK, width), np.float32)
    first, num_absent = partition_of(code_of(keys[0])), 0
    for turn in range(PARTITIONS):
        partition = (first + turn) % PARTITIONS
        record, end = partition * RECORD, bounds[partition + 1]
        for begin in range(bounds[partition], end, BLOCK):
            count = min(BLOCK, end - begin)
            block, places = codes[begin : begin + count], positions[begin : begin + count]
            enter(index.parts, record)
            absent = locate(index, rows, record, block, places, times, starts, outcome)
            if absent:
                num_absent += absent
                create(index, rows, fills, record, block, places, keys, times, admitted, starts, fresh, outcome)
            # The next block's misses run while this one's rows are at work.
            for i in range(begin + count, min(begin + count + BLOCK, keys.size)):
                home = home_of(index.parts, partition_of(codes[i]) * RECORD, codes[i])
                prefetch(index.slots, 2 * home)
                if absent:  # an insert moves its cluster, which often reaches into the next line
                    prefetch(index.slots, 2 * home + 8)
                prefetch_row(flat, positions[i] * width, width)
            perform(action, rows, starts[:count], places, keys, inputs, scratch)
            leave(index.parts, record)
    return num_absent


@inlined
def at(array: Any, i: Int) -> Any:
    """array[i], or its only element."""
    return array[i if array.size > 1 else 0]


@kernel
def locate(index: Index, rows: Rows, record: Int, codes: U64, places: I64, times: I64, starts: I64, outcome: U8) -> Int:
    """Find and fetch the rows of a block and note the time of those that exist; the number of absent ones."""
    slots, width, absent = index.slots, rows.template.size, 0
    for i in range(codes.size):
        slot = find(slots, home_of(index.parts, record, codes[i]), codes[i])
        if holds(slots, slot, codes[i]):
            row = row_of(slots[2 * slot + 1])
            starts[i] = row * width
            prefetch_row(rows.values, row * width, width)
            slots[2 * slot + 1] = entry_of(row, at(times, places[i]))
            outcome[places[i]] = EXISTING
        else:
            starts[i] = -1
            absent += 1
    return absent


@kernel
def create(
    index: Index,
    rows: Rows,
    fills: Any,
    record: Int,
    codes: U64,
    places: I64,
    keys: I64,
    times: I64,
    admitted: Bools,
    starts: I64,
    fresh: I64,
    outcome: U8,
) -> None:
    """Make the rows of a block whose starts are -1, as far as they are admitted and there is room."""
    wanted = 0
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
            insert(index.slots, slot, codes[i], entry_of(claimed[used], at(times, places[i])))
            starts[i] = claimed[used] * rows.template.size
            outcome[places[i]] = CREATED
            used += 1
    index.parts[record + USED] += used
    begin(rows, fills, keys, starts, fresh[: codes.size], places, outcome)
    give_rows(rows, claimed[used:granted])


@kernel
def begin(rows: Rows, fills: Any, keys: I64, starts: I64, fresh: I64, places: I64, outcome: U8) -> None:
    """Give the rows made in this block their first values; `fresh` is scratch."""
    for i in range(fresh.size):
        fresh[i] = -1
        if outcome[places[i]] == CREATED:
            fresh[i] = starts[i]
            copy_floats(rows.template, 0, rows.values, starts[i], rows.template.size)
    if len(fills) > 0:
        fill_segments(fills, rows.values, fresh, keys[places])
