"""Dropping rows by id."""

import numpy as np

from megalith.engine.kernels.codes import code_of, home_of, partition_of
from megalith.engine.kernels.index import find, holds, remove, row_of
from megalith.engine.kernels.latch import enter, leave
from megalith.engine.kernels.layout import RECORD, USED, Index, Int, Rows
from megalith.engine.kernels.pool import give_rows
from megalith.kernels.dtypes import I64
from megalith.kernels.jit import kernel


@kernel
def erase(index: Index, rows: Rows, ids: I64, dropped: I64) -> Int:
    """Drop the rows of ids, each under its partition's latch; how many there were.

    `dropped` is as long as `ids`; the ids that had a row come there.
    """
    slots = index.slots
    parts = index.parts
    erased = 0
    freed = np.empty(1, np.int64)
    for i in range(ids.size):
        code = code_of(index.secret, ids[i])
        record = partition_of(code) * RECORD
        enter(parts, record)
        slot = find(slots, home_of(parts, record, code), code)
        if holds(slots, slot, code):
            freed[0] = row_of(slots[2 * slot + 1])
            remove(slots, parts, record, slot)
            parts[record + USED] -= 1
            give_rows(rows, freed)
            dropped[erased] = ids[i]
            erased += 1
        leave(parts, record)
    return erased
