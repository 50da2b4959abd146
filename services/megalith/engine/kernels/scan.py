"""Walking over all rows: dumping them in chunks, finding and dropping the expired ones.

A dump goes in the order of codes: the partitions in turn, in each the homes from the last line
down. Codes do not depend on capacities, so a dump that stops and goes on meets every row that was
there all the time exactly once, whatever came, went or grew meanwhile.
"""

import numpy as np

from megalith.engine.kernels.codes import first_code, home_of, id_of
from megalith.engine.kernels.copying import copy_floats
from megalith.engine.kernels.gather import prefetch_row
from megalith.engine.kernels.index import (
    begin_of,
    end_of,
    entries_in,
    insert,
    is_full,
    renewed,
    row_of,
    take_line,
    time_of,
)
from megalith.engine.kernels.latch import enter, leave
from megalith.engine.kernels.layout import (
    LINE,
    PARTITION_BITS,
    PARTITIONS,
    RECORD,
    U64,
    USED,
    Index,
    Int,
    Rows,
)
from megalith.engine.kernels.pool import give_rows
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import inlined, kernel

# Rows and homes of a dump per latch: at most 8 us for who waits for it; rows given back at once
CHUNK = 256

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TOP = np.uint64(64 - PARTITION_BITS)
_SLOT_SHIFT = np.uint64(48)
_SLOT_MASK = np.uint64(0x7FFF)


@inlined
def overdue(expire_s: I64, row_id: Int, time_s: Int, now_s: Int) -> Int:
    """Seconds since the row expired, negative while it is alive.

    The slot of an id is its bits 48..62.
    """
    return now_s - time_s - expire_s[np.int64((np.uint64(row_id) >> _SLOT_SHIFT) & _SLOT_MASK)]


@inlined
def next_in(slots: U64, parts: I64, record: Int, home: Int, code: np.uint64) -> Int:
    """The slot of the smallest code from `code` on that has this home; -1 if there is none."""
    best = -1
    is_last = False
    line = home
    while not is_last:
        for slot in range(line, line + entries_in(slots, line)):
            here = slots[2 * slot]
            if (
                here >= code
                and home_of(parts, record, here) == home
                and (best < 0 or here < slots[2 * best])
            ):
                best = slot
        is_last = not is_full(slots, line)
        line += LINE
    return best


@kernel
def dump(
    index: Index,
    rows: Rows,
    code: np.uint64,
    last: np.uint64,
    expire_s: I64,
    now_s: Int,
    codes: U64,
    ids: I64,
    out: F32,
    times: I64,
) -> Int:
    """Copy the rows of codes code..last that are not expired, as many as fit in `ids`; how many.

    `expire_s` may be empty: then all rows count as alive. codes[i] is the code of ids[i].
    """
    slots = index.slots
    parts = index.parts
    width = rows.template.size
    flat = out.reshape(-1)
    starts = np.empty(CHUNK, np.int64)  # of the rows that are copied under one latch
    count = 0
    is_done = bool(code > last)
    while count < ids.size and not is_done:
        record = np.int64(code >> _TOP) * RECORD
        visited = 0
        first = count
        enter(parts, record)
        home = home_of(parts, record, code)
        begin = begin_of(parts, record)
        while home >= begin and visited < CHUNK and count < ids.size and not is_done:
            slot = next_in(slots, parts, record, home, code)
            visited += 1
            if slot < 0:
                home -= LINE
                code = max(code, first_code(parts, record, home))
                is_done = bool(code > last)
                continue
            code = slots[2 * slot]
            entry = slots[2 * slot + 1]
            row_id = id_of(index.secret, code)
            is_due = expire_s.size > 0 and overdue(expire_s, row_id, time_of(entry), now_s) >= 0
            if code <= last and not is_due:
                codes[count], ids[count], times[count] = code, row_id, time_of(entry)
                starts[count - first] = row_of(entry) * width
                prefetch_row(rows.values, starts[count - first], width)
                count += 1
            is_done = bool(code >= last)
            code += _ONE
        for i in range(first, count):  # all at once: then their cache misses overlap
            copy_floats(rows.values, starts[i - first], flat, i * width, width)
        leave(parts, record)
        if home < begin and not is_done:
            is_done = record // RECORD == np.int64(last >> _TOP)
            code = np.uint64(record // RECORD + 1) << _TOP
    return count


@kernel
def list_overdue(index: Index, expire_s: I64, now_s: Int, out: I64) -> Int:
    """The overdue seconds of expired rows, as many as fit in `out`; how many rows are expired."""
    slots = index.slots
    parts = index.parts
    count = 0
    for partition in range(PARTITIONS):
        record = partition * RECORD
        enter(parts, record)
        for slot in range(begin_of(parts, record), end_of(parts, record)):
            if slots[2 * slot + 1] != _ZERO:
                late_s = overdue(
                    expire_s,
                    id_of(index.secret, slots[2 * slot]),
                    time_of(slots[2 * slot + 1]),
                    now_s,
                )
                if late_s >= 0:
                    if count < out.size:
                        out[count] = late_s
                    count += 1
        leave(parts, record)
    return count


@kernel
def drop_overdue(
    index: Index,
    rows: Rows,
    expire_s: I64,
    now_s: Int,
    least_s: Int,
    ties: Int,
    most: Int,
    ids: I64,
) -> Int:
    """Drop rows overdue by more than `least_s`, and `ties` of those overdue by exactly that.

    Returns how many were dropped. Their ids come to `ids`, which has room for `most` of them.

    They are `most` at most, whatever came since `least_s` was found. One pass per partition under
    its latch closes the gaps as it goes. Nothing is allocated under the latch: running out of
    memory there would leave it taken for ever.
    """
    slots = index.slots
    parts = index.parts
    dropped = 0
    freed = np.empty(CHUNK, np.int64)
    taken = np.empty(2 * LINE, np.uint64)
    for partition in range(PARTITIONS):
        record = partition * RECORD
        enter(parts, record)
        num_freed = 0
        before = dropped
        for line in range(begin_of(parts, record), end_of(parts, record), LINE):
            for i in range(take_line(slots, line, taken)):
                code = taken[2 * i]
                entry = taken[2 * i + 1]
                id_ = id_of(index.secret, code)
                late_s = overdue(expire_s, id_, time_of(entry), now_s)
                is_tie = late_s == least_s and ties > 0
                if not ((late_s > least_s or is_tie) and dropped < most):
                    insert(slots, home_of(parts, record, code), code, entry)
                    continue
                ties -= is_tie
                freed[num_freed] = row_of(entry)
                num_freed += 1
                ids[dropped] = id_
                dropped += 1
                if num_freed == CHUNK:
                    give_rows(rows, freed)
                    num_freed = 0
        parts[record + USED] -= dropped - before
        give_rows(rows, freed[:num_freed])
        leave(parts, record)
    return dropped


@kernel
def date_rows(index: Index, time_s: Int) -> None:
    """Give the rows that have no time this one.

    Whether a partition has rows is looked at under its latch: before that, a writer may be about to
    count its own.
    """
    slots = index.slots
    parts = index.parts
    for partition in range(PARTITIONS):
        record = partition * RECORD
        enter(parts, record)
        if parts[record + USED] > 0:
            for slot in range(begin_of(parts, record), end_of(parts, record)):
                entry = slots[2 * slot + 1]
                if entry != _ZERO and time_of(entry) == 0:
                    slots[2 * slot + 1] = renewed(entry, time_s)
        leave(parts, record)


@kernel
def enter_all(parts: I64) -> None:
    """Become the writer of every partition.

    Always in this order, so two callers cannot block each other.
    """
    for partition in range(PARTITIONS):
        enter(parts, partition * RECORD)


@kernel
def leave_all(parts: I64) -> None:
    for partition in range(PARTITIONS):
        leave(parts, partition * RECORD)
