"""Writing rows by id.

Each row is found or made, then acted on, under the latch of one partition at a time.
"""

from typing import Any, NamedTuple

import numpy as np

from megalith.engine.kernels.actions import floats_at_risk, perform
from megalith.engine.kernels.codes import code_of, home_of, ids_of, partition_of
from megalith.engine.kernels.copying import copy_floats
from megalith.engine.kernels.gather import prefetch_row
from megalith.engine.kernels.grouping import group, part_length
from megalith.engine.kernels.index import (
    ROOM_SCRATCH,
    TOUCHED,
    beyond,
    entry_of,
    farther,
    find,
    holds,
    insert,
    line_of,
    make_room,
    renewed,
    row_of,
)
from megalith.engine.kernels.latch import enter, leave
from megalith.engine.kernels.layout import (
    CAPACITY,
    FAR,
    PARTITIONS,
    POOL_NEWEST_S,
    RECORD,
    U64,
    USED,
    WRITE_BLOCK,
    Index,
    Int,
    Rows,
    Secret,
)
from megalith.engine.kernels.pool import give_rows, take_rows
from megalith.engine.kernels.prefetch import prefetch
from megalith.engine.kernels.segments import fill_segments
from megalith.engine.kernels.undo import keep_rows, put_back
from megalith.kernels.dtypes import F32, I64, U8, Bools
from megalith.kernels.jit import inlined, kernel

# What became of a position of the batch.
EXISTING = 0
CREATED = 1
REFUSED = 2  # absent, and the table is full
BARRED = 3  # absent, and the caller did not admit it


class Notes(NamedTuple):
    """What a write tells its caller.

    outcome   what became of each position
    touched   empty, or as long as the batch: then rows get the touched bit, and the codes of those
              that did not have it come here
    tally     two elements: how many those are, and at how many positions the action was undone
              because the row would not have been finite after it
    """

    outcome: U8
    touched: U64
    tally: I64


class Scratch(NamedTuple):
    """Memory for the absent ids of a block.

    It is taken before a latch is: running out of memory under one would leave it taken.

    spots     where the search for each ended: the first slot of a line that was not full
    claimed   rows for them
    fresh     where the rows that were made begin
    ids      what the codes of the block spell
    room      what growing a partition takes
    """

    spots: I64
    claimed: I64
    fresh: I64
    ids: I64
    room: U64


@kernel
def scratch_of_a_block() -> Scratch:
    return Scratch(
        np.empty(WRITE_BLOCK, np.int64),
        np.empty(WRITE_BLOCK, np.int64),
        np.empty(WRITE_BLOCK, np.int64),
        np.empty(WRITE_BLOCK, np.int64),
        np.empty(ROOM_SCRATCH, np.uint64),
    )


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
    ids: I64,
    inputs: F32,
    times: I64,
    admitted: Bools,
    notes: Notes,
) -> Int:
    """Act on the row of every id, in the order of the batch for equal ids; how many were absent.

    Absent ids get a row first, if they may. `times` and `admitted` have one element for each
    position or a single one for all. A time moves that of a row forward or leaves it; with time 0 a
    row keeps its own, and a new one gets the newest data time. A partition is latched for one block
    of ids (10 us) at a time. Writers begin at the partition of their first id, so that they seldom
    meet.
    """
    if ids.size == 0:
        return 0
    length = part_length(ids.size, inputs.shape[1])
    codes = np.empty(length, np.uint64)
    positions = np.empty(length, np.int64)
    ordered = np.empty((length, inputs.shape[1]), np.float32)
    bounds = np.empty(PARTITIONS + 1, np.int64)
    starts = np.empty(WRITE_BLOCK, np.int64)
    homes = np.empty(WRITE_BLOCK, np.int64)
    scratch = scratch_of_a_block()
    at_risk = floats_at_risk(action, rows.template.size)
    before = np.empty(WRITE_BLOCK * at_risk, np.float32)
    first = partition_of(code_of(index.secret, ids[0]))
    num_absent = 0
    is_filling = False
    for part in range(0, ids.size, length):
        size = min(length, ids.size - part)
        group(index.secret, ids, inputs, part, size, codes, positions, ordered, bounds)
        for turn in range(PARTITIONS):
            partition = (first + turn) % PARTITIONS
            record = partition * RECORD
            end = bounds[partition + 1]
            for begin in range(bounds[partition], end, WRITE_BLOCK):
                count = min(WRITE_BLOCK, end - begin)
                after = begin + count
                block = codes[begin:after]
                block_positions = positions[begin:after]
                enter(index.parts, record)
                granted = 0
                if is_filling:
                    fetch_ahead(index, codes, after, size)
                    granted = claim(index, rows, record, count, scratch)
                created, absent = locate(
                    index,
                    rows,
                    record,
                    block,
                    block_positions,
                    times,
                    admitted,
                    starts,
                    granted,
                    scratch,
                    notes,
                )
                if created:
                    begin_rows(rows, fills, index.secret, block, scratch.fresh[:count], scratch.ids)
                if created < granted:
                    give_rows(rows, scratch.claimed[created:granted])
                if absent:
                    create(
                        index,
                        rows,
                        fills,
                        record,
                        block,
                        block_positions,
                        times,
                        admitted,
                        starts,
                        scratch,
                        notes,
                    )
                num_absent += created + absent
                is_filling = 2 * (created + absent) > count
                if not is_filling:
                    # The next block's misses run while this one's rows are at work.
                    ahead = min(WRITE_BLOCK, size - after)
                    for i in range(ahead):
                        code = codes[after + i]
                        homes[i] = home_of(index.parts, partition_of(code) * RECORD, code)
                    for i in range(ahead):
                        prefetch(index.slots, 2 * homes[i])
                if at_risk:
                    keep_rows(rows.values, starts[:count], at_risk, before)
                perform(
                    action,
                    rows,
                    starts[:count],
                    index.secret,
                    block,
                    scratch.ids,
                    ordered[begin:after],
                )
                if at_risk:
                    notes.tally[1] += put_back(rows.values, starts[:count], at_risk, before)
                leave(index.parts, record)
    return num_absent


@inlined
def fetch_ahead(index: Index, codes: U64, begin: Int, end: Int) -> None:
    """Fetch the home lines of the block after the next, and what follows full ones of the next.

    Those of the next block are at hand. New ids need more lines than others, since they search to
    the end of their cluster.
    """
    of_next = min(begin + WRITE_BLOCK, end)
    for i in range(begin, of_next):
        record = partition_of(codes[i]) * RECORD
        home = home_of(index.parts, record, codes[i])
        prefetch(index.slots, 2 * beyond(index.slots, home))

    after_next = min(begin + 2 * WRITE_BLOCK, end)
    for i in range(begin + WRITE_BLOCK, after_next):
        record = partition_of(codes[i]) * RECORD
        home = home_of(index.parts, record, codes[i])
        prefetch(index.slots, 2 * home)


@kernel
def claim(index: Index, rows: Rows, record: Int, count: Int, scratch: Scratch) -> Int:
    """Claim rows and make room for a block that seems to have new ids only: `count` or none."""
    granted = take_rows(rows, count, scratch.claimed)
    if granted == count and make_room(
        index.slots, index.parts, record, count, rows.pool, scratch.room
    ):
        return count
    give_rows(rows, scratch.claimed[:granted])
    return 0


@inlined
def at(array: Any, i: Int) -> Any:
    """array[i], or its only element."""
    return array[i if array.size > 1 else 0]


@inlined
def begun(row: Int, time_s: Int, newest_s: Int) -> np.uint64:
    """The entry of a new row; one without a time gets the newest data time."""
    return entry_of(row, time_s if time_s > 0 else newest_s)


@kernel
def locate(
    index: Index,
    rows: Rows,
    record: Int,
    codes: U64,
    positions: I64,
    times: I64,
    admitted: Bools,
    starts: I64,
    granted: Int,
    scratch: Scratch,
    notes: Notes,
) -> tuple[Int, Int]:
    """Find and fetch the rows of a block, and note the time of those that exist.

    Absent ids that are admitted get the first of the `granted` rows that were claimed; how many
    did, and how many are still absent.
    """
    slots = index.slots
    width = rows.template.size
    mark = mark_of(notes)
    created = 0
    absent = 0
    # Read under the latch, so that a row without a time either gets it or is there when `date_rows`
    # comes.
    newest_s = rows.pool[POOL_NEWEST_S]
    far = 0
    for i in range(codes.size):
        scratch.spots[i] = home_of(index.parts, record, codes[i])
        line = beyond(slots, scratch.spots[i])
        prefetch(slots, 2 * (beyond(slots, line) if granted else line))
    for i in range(codes.size):
        scratch.fresh[i] = -1
        slot = find(slots, scratch.spots[i], codes[i])
        if holds(slots, slot, codes[i]):
            entry = slots[2 * slot + 1]
            starts[i] = row_of(entry) * width
            slots[2 * slot + 1] = renewed(entry, at(times, positions[i])) | mark
            if mark & ~entry:
                note_touch(notes, codes[i])
            notes.outcome[positions[i]] = EXISTING
        elif created < granted and at(admitted, positions[i]):
            insert(
                slots,
                line_of(slot),
                codes[i],
                begun(scratch.claimed[created], at(times, positions[i]), newest_s) | mark,
            )
            far = farther(far, slot, scratch.spots[i])
            if mark:
                note_touch(notes, codes[i])
            starts[i] = scratch.fresh[i] = scratch.claimed[created] * width
            notes.outcome[positions[i]] = CREATED
            created += 1
        else:
            starts[i] = -1
            scratch.spots[i] = line_of(slot)
            absent += 1
    # In a loop of its own: a fetch waits for its page's address, and a short loop has more of them
    # waiting at once.
    for i in range(codes.size):
        prefetch_row(rows.values, max(0, starts[i]), width)
    index.parts[record + USED] += created
    if far:
        index.parts[record + FAR] = far
    return created, absent


@kernel
def create(
    index: Index,
    rows: Rows,
    fills: Any,
    record: Int,
    codes: U64,
    positions: I64,
    times: I64,
    admitted: Bools,
    starts: I64,
    scratch: Scratch,
    notes: Notes,
) -> None:
    """Make the rows of a block whose starts are -1, if they are admitted and there is room."""
    slots = index.slots
    parts = index.parts
    spots = scratch.spots
    claimed = scratch.claimed
    wanted = 0
    outcome = notes.outcome
    mark = mark_of(notes)
    width = rows.template.size
    for i in range(codes.size):
        if starts[i] < 0:
            outcome[positions[i]] = REFUSED if at(admitted, positions[i]) else BARRED
            wanted += at(admitted, positions[i])
    granted = take_rows(rows, wanted, claimed)
    used = 0
    capacity = parts[record + CAPACITY]
    newest_s = rows.pool[POOL_NEWEST_S]
    far = 0
    # Rows first: a full table must not grow its index for ids that it then refuses.
    is_room = granted > 0 and make_room(slots, parts, record, granted, rows.pool, scratch.room)
    has_grown = capacity != parts[record + CAPACITY]
    for i in range(codes.size):
        scratch.fresh[i] = -1
        if starts[i] >= 0 or not at(admitted, positions[i]):
            continue
        # Only ids of this block came since the search, and all of them from its end on.
        home = home_of(parts, record, codes[i])
        slot = find(slots, home if has_grown else spots[i], codes[i])
        if holds(slots, slot, codes[i]):  # the same id a few positions before
            starts[i] = row_of(slots[2 * slot + 1]) * width
            outcome[positions[i]] = EXISTING
        elif is_room and used < granted:
            insert(
                slots,
                line_of(slot),
                codes[i],
                begun(claimed[used], at(times, positions[i]), newest_s) | mark,
            )
            far = farther(far, slot, home)
            if mark:
                note_touch(notes, codes[i])
            starts[i] = scratch.fresh[i] = claimed[used] * width
            outcome[positions[i]] = CREATED
            used += 1
    parts[record + USED] += used
    if far:
        parts[record + FAR] = far
    begin_rows(rows, fills, index.secret, codes, scratch.fresh[: codes.size], scratch.ids)
    give_rows(rows, claimed[used:granted])


@kernel
def begin_rows(rows: Rows, fills: Any, secret: Secret, codes: U64, fresh: I64, ids: I64) -> None:
    """Give new rows their first values; -1 skips. `ids` is scratch of a block."""
    for i in range(fresh.size):
        if fresh[i] >= 0:
            copy_floats(rows.template, 0, rows.values, fresh[i], rows.template.size)
    if len(fills) > 0:
        ids_of(secret, codes, ids)
        fill_segments(fills, rows.values, fresh, ids)
