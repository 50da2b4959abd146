"""Rows for code that is not a kernel: found or made like in write.py, latched until they are let go."""

from typing import Any

import numpy as np

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.dtypes import I64, U8, Bools
from megalith.ps.kernels.grouping import group
from megalith.ps.kernels.latch import enter, leave
from megalith.ps.kernels.layout import BLOCK, PARTITIONS, RECORD, Index, Rows
from megalith.ps.kernels.write import create, locate


@kernel
def hold(
    index: Index, rows: Rows, fills: Any, keys: I64, times: I64, admitted: Bools, outcome: U8, starts: I64
) -> None:
    """Latch the partitions of `keys`, in order, and give the start of each row, -1 if refused or barred.

    The caller calls `let_go` with the same keys, soon: until then nobody else gets at these partitions.
    """
    codes, positions = np.empty(keys.size, np.uint64), np.empty(keys.size, np.int64)
    bounds, fresh, block_starts = (
        np.empty(PARTITIONS + 1, np.int64),
        np.empty(BLOCK, np.int64),
        np.empty(BLOCK, np.int64),
    )
    group(keys, codes, positions, bounds)
    for partition in range(PARTITIONS):
        record, end = partition * RECORD, bounds[partition + 1]
        if bounds[partition] < end:
            enter(index.parts, record)
        for begin in range(bounds[partition], end, BLOCK):
            count = min(BLOCK, end - begin)
            block, places = codes[begin : begin + count], positions[begin : begin + count]
            if locate(index, rows, record, block, places, times, block_starts, outcome):
                create(index, rows, fills, record, block, places, keys, times, admitted, block_starts, fresh, outcome)
            for i in range(count):
                starts[places[i]] = block_starts[i]


@kernel
def let_go(index: Index, keys: I64) -> None:
    codes, positions = np.empty(keys.size, np.uint64), np.empty(keys.size, np.int64)
    bounds = np.empty(PARTITIONS + 1, np.int64)
    group(keys, codes, positions, bounds)
    for partition in range(PARTITIONS):
        if bounds[partition] < bounds[partition + 1]:
            leave(index.parts, partition * RECORD)
