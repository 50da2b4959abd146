"""Rows that come whole, for ids that a table does not have yet: most of a restore.

Their floats go from the columns of a file straight to their places, in the order of the file. Only
their entries in the index are put into the order of the partitions.
"""

from typing import NamedTuple

import numpy as np

from megalith.engine.kernels.codes import code_of, home_of, partition_of
from megalith.engine.kernels.copying import copy_floats
from megalith.engine.kernels.index import (
    ROOM_SCRATCH,
    farther,
    find,
    holds,
    insert,
    line_of,
    make_room,
)
from megalith.engine.kernels.latch import enter, leave
from megalith.engine.kernels.layout import (
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
)
from megalith.engine.kernels.pool import give_rows, take_rows
from megalith.engine.kernels.write import begun, fetch_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel

# Elements of a tally
CREATED = 0
REFUSED = 1  # no room in the index; ids that are in neither are in the table already
TALLY = 2


class EntriesByPartition(NamedTuple):
    """Entries in the order of the partitions; partition p has [bounds[p], bounds[p+1])."""

    codes: U64
    claimed: I64
    times: I64
    bounds: I64


@kernel
def load_new(
    index: Index,
    rows: Rows,
    ids: I64,
    embeddings: F32,
    states: F32,
    times: I64,
    tally: I64,
) -> bool:
    """Make rows of the ids that have none; False, and nothing done, without rows for all of them.

    The floats are flat, of ids.size rows each. An id that has a row keeps it as it is. A partition
    is latched for one block of ids at a time, and the floats of a row are in place before its id
    is.
    """
    count = ids.size
    claimed = np.empty(count, np.int64)
    spare = np.empty(count, np.int64)
    room = np.empty(ROOM_SCRATCH, np.uint64)
    granted = take_rows(rows, count, claimed)
    if granted < count:
        give_rows(rows, claimed[:granted])
        return False

    put_floats(rows, claimed, embeddings, states)
    ordered = in_order(index, ids, claimed, times)
    bounds = ordered.bounds
    first = partition_of(code_of(index.secret, ids[0])) if count else 0
    num_spare = 0
    for turn in range(PARTITIONS):
        partition = (first + turn) % PARTITIONS
        record = partition * RECORD
        end = bounds[partition + 1]
        for begin in range(bounds[partition], end, WRITE_BLOCK):
            after = min(begin + WRITE_BLOCK, end)
            fetch_ahead(index, ordered.codes, after, count)
            enter(index.parts, record)
            if make_room(index.slots, index.parts, record, after - begin, rows.pool, room):
                left = enter_new(index, rows, record, ordered, begin, after, spare, num_spare)
                tally[CREATED] += after - begin - left
            else:
                left = after - begin
                for i in range(left):
                    spare[num_spare + i] = ordered.claimed[begin + i]
                tally[REFUSED] += left
            leave(index.parts, record)
            num_spare += left

    give_rows(rows, spare[:num_spare])
    return True


@kernel
def put_floats(rows: Rows, claimed: I64, embeddings: F32, states: F32) -> None:
    """Embedding and state side by side, into rows that no id refers to yet."""
    count = max(1, claimed.size)
    dim = embeddings.size // count
    state_width = states.size // count
    width = rows.template.size
    for i in range(claimed.size):
        start = claimed[i] * width
        copy_floats(embeddings, i * dim, rows.values, start, dim)
        copy_floats(states, i * state_width, rows.values, start + dim, state_width)


@kernel
def in_order(index: Index, ids: I64, claimed: I64, times: I64) -> EntriesByPartition:
    """A stable counting sort by partition."""
    codes = np.empty(ids.size, np.uint64)
    ordered = EntriesByPartition(
        np.empty(ids.size, np.uint64),
        np.empty(ids.size, np.int64),
        np.empty(ids.size, np.int64),
        np.zeros(PARTITIONS + 1, np.int64),
    )
    bounds = ordered.bounds
    for i in range(ids.size):
        codes[i] = code_of(index.secret, ids[i])
        bounds[partition_of(codes[i]) + 1] += 1
    for p in range(PARTITIONS):
        bounds[p + 1] += bounds[p]
    ends = bounds[:PARTITIONS].copy()
    for i in range(ids.size):
        p = partition_of(codes[i])
        ordered.codes[ends[p]] = codes[i]
        ordered.claimed[ends[p]] = claimed[i]
        ordered.times[ends[p]] = times[i]
        ends[p] += 1
    return ordered


@kernel
def enter_new(
    index: Index,
    rows: Rows,
    record: Int,
    ordered: EntriesByPartition,
    begin: Int,
    end: Int,
    spare: I64,
    num_spare: Int,
) -> Int:
    """Put absent ids into a partition that has room, with its latch held.

    The rows of the others go to `spare`, from `num_spare` on; how many these are.
    """
    slots = index.slots
    parts = index.parts
    newest_s = rows.pool[POOL_NEWEST_S]  # under the latch, as in write.locate
    far = 0
    left = 0
    for i in range(begin, end):
        code = ordered.codes[i]
        home = home_of(parts, record, code)
        slot = find(slots, home, code)
        if holds(slots, slot, code):
            spare[num_spare + left] = ordered.claimed[i]
            left += 1
        else:
            entry = begun(ordered.claimed[i], ordered.times[i], newest_s)
            insert(slots, line_of(slot), code, entry)
            far = farther(far, slot, home)
    parts[record + USED] += end - begin - left
    if far:
        parts[record + FAR] = far
    return left
