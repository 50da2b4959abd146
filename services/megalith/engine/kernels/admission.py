"""Counting how often an id was seen, in a few bits each, and deciding whether that is often enough.

A block is an open-addressing table of cells; a cell holds [signature | count], and 0 is empty.
Several blocks form a ring, of which a window moves forward:

    ... forgotten | head - backward .. head - 1: looked at | head: filled | head + 1: if it is full

An id met again in the head is counted there; one met in an older block is copied to the head with
its count. When the head is full the window moves on by one block, so that ids not seen for about
`capacity` newer ones are forgotten. A plain filter is a ring of one block that never turns. Ids
whose signature and place agree share a count: a filter may admit too early, never too late.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.engine.kernels.prefetch import prefetch
from megalith.kernels.dtypes import I32, I64, Bools
from megalith.kernels.jit import kernel
from megalith.kernels.mixing import GOLDEN, mix

Cells = NDArray[Any]  # unsigned integers of 1, 2 or 4 bytes

HEAD = 0
HEAD_INCREMENT = 1
FAILURES = 2
COUNTERS = 3
SLOT_SHIFT = np.uint64(48)
SLOT_MASK = np.uint64(0x7FFF)
NUM_SLOTS = 1 << 15
SIGNATURE_SHIFT = np.uint64(17)
LOW_32 = np.uint64(0xFFFFFFFF)
# 17 M new ids/s instead of 5 in a filter of 280 MB, 3.4 instead of 1.2 once its ring has turned
AHEAD = 8
NOWHERE = np.int64(-1)


class CellLayout(NamedTuple):
    """The fixed shape of a filter; all blocks are alike. `block_capacity` ids make a block full."""

    ring: int
    block_capacity: int
    total_size: int  # cells in which a search may begin
    num_cells: int  # cells of a block, a few more than that
    max_steps: int  # cells that a search looks at
    count_bits: int
    signature_bits: int
    forward: int  # blocks from the head on that may take a new id
    backward: int  # blocks before the head that are still remembered


@kernel
def max_count(layout: CellLayout) -> np.int64:
    """Where counts stop.

    Also what is reported for an id that found no cell, so that it is admitted.
    """
    return np.int64((1 << layout.count_bits) - 1)


@kernel
def signature_of(row_id: np.int64, layout: CellLayout) -> np.int64:
    return np.int64(
        (np.uint64(row_id) >> SIGNATURE_SHIFT) & np.uint64((1 << layout.signature_bits) - 1)
    )


@kernel
def start_of(row_id: np.int64, layout: CellLayout) -> np.int64:
    """The cell at which the search begins, the same in every block.

    It is the low bits of the hash, scaled to total_size (below 2^32).
    """
    return np.int64(
        ((mix(np.uint64(row_id)) & LOW_32) * np.uint64(layout.total_size)) >> np.uint64(32)
    )


@kernel
def find(
    cells: Cells, layout: CellLayout, block: np.int64, start: np.int64, signature: np.int64
) -> np.int64:
    """Index into `cells` of the first empty or matching cell of a block, or NOWHERE.

    No search wraps around: a block has as many cells beyond total_size as the longest search looks
    at. Early exit beats comparing 16 cells at once with vector instructions (7.7 to 5.3 M new ids/s
    in a ring that has turned).
    """
    at = block * layout.num_cells + start
    for _ in range(layout.max_steps):
        cell = np.int64(cells[at])
        if cell == 0 or (cell >> layout.count_bits) == signature:
            return at
        at += 1
    return NOWHERE


@kernel
def remembered(
    cells: Cells, counters: I64, layout: CellLayout, start: np.int64, signature: np.int64
) -> np.int64:
    """The count of an id in the blocks behind the head, newest first; 0 if none has it."""
    block = counters[HEAD]
    for _ in range(min(counters[HEAD_INCREMENT], layout.backward)):
        block = (block + layout.ring - 1) % layout.ring
        at = find(cells, layout, block, start, signature)
        if at != NOWHERE and cells[at] != 0:
            return np.int64(cells[at]) & max_count(layout)
    return np.int64(0)


@kernel
def turn(cells: Cells, elements: I64, counters: I64, layout: CellLayout) -> None:
    """Make the next block the head, and the one after it empty."""
    counters[HEAD] = (counters[HEAD] + 1) % layout.ring
    counters[HEAD_INCREMENT] += 1
    coming = (counters[HEAD] + 1) % layout.ring
    if elements[coming] > 0:
        cells[coming * layout.num_cells : (coming + 1) * layout.num_cells] = 0
        elements[coming] = 0


@kernel
def increase(
    row_id: np.int64,
    count: np.int64,
    layout: CellLayout,
    cells: Cells,
    elements: I64,
    counters: I64,
) -> np.int64:
    """Count `count` more sightings of an id; returns how often it had been seen before."""
    start = start_of(row_id, layout)
    signature = signature_of(row_id, layout)
    limit = max_count(layout)
    block = counters[HEAD]
    at = find(cells, layout, block, start, signature)
    if at == NOWHERE and layout.forward > 1:
        block = (block + 1) % layout.ring
        at = find(cells, layout, block, start, signature)
    if at == NOWHERE:
        counters[FAILURES] += 1
        return limit
    cell = np.int64(cells[at])
    if cell != 0:
        old = cell & limit
        cells[at] = (signature << layout.count_bits) | min(old + min(count, limit), limit)
        return old
    old = remembered(cells, counters, layout, start, signature)
    cells[at] = (signature << layout.count_bits) | min(old + min(count, limit), limit)
    elements[block] = min(elements[block] + 1, layout.block_capacity)
    if layout.ring > 1 and elements[counters[HEAD]] >= layout.block_capacity - 1:
        turn(cells, elements, counters, layout)
    return old


@kernel
def threshold_of(row_id: np.int64, thresholds: I32) -> np.int64:
    return np.int64(thresholds[(np.uint64(row_id) >> SLOT_SHIFT) & SLOT_MASK])


@kernel
def look_ahead(row_id: np.int64, layout: CellLayout, cells: Cells, counters: I64) -> None:
    """Start loading the cells of an id in the head and in all blocks behind it.

    A new id is looked for in each.
    """
    start = start_of(row_id, layout)
    block = counters[HEAD]
    prefetch(cells, block * layout.num_cells + start)
    for _ in range(min(counters[HEAD_INCREMENT], layout.backward)):
        block = (block + layout.ring - 1) % layout.ring
        prefetch(cells, block * layout.num_cells + start)


@kernel
def admit_counted(
    ids: I64,
    counts: I64,
    thresholds: I32,
    layout: CellLayout,
    cells: Cells,
    elements: I64,
    counters: I64,
    out: Bools,
) -> None:
    """Mark the ids seen at least their slot's threshold of times before.

    Ids of threshold 0 leave no trace.
    """
    for i in range(ids.size):
        if i + AHEAD < ids.size:
            look_ahead(ids[i + AHEAD], layout, cells, counters)
        threshold = threshold_of(ids[i], thresholds)
        out[i] = (
            threshold <= 0
            or increase(ids[i], counts[i], layout, cells, elements, counters) >= threshold
        )


@kernel
def read_counts(ids: I64, layout: CellLayout, cells: Cells, counters: I64, out: I64) -> None:
    """How often each id was seen, as far as the filter remembers; changes nothing."""
    for i in range(ids.size):
        start = start_of(ids[i], layout)
        signature = signature_of(ids[i], layout)
        at = find(cells, layout, counters[HEAD], start, signature)
        if at == NOWHERE and layout.forward > 1:
            at = find(cells, layout, (counters[HEAD] + 1) % layout.ring, start, signature)
        if at == NOWHERE:
            out[i] = max_count(layout)
        elif cells[at] != 0:
            out[i] = np.int64(cells[at]) & max_count(layout)
        else:
            out[i] = remembered(cells, counters, layout, start, signature)


@kernel
def admit_by_chance(
    ids: I64, counts: I64, thresholds: I32, is_equal: bool, seed: int, first_draw: int, out: Bools
) -> None:
    """Admit an id with probability count/T, or with one that admits 95 % of ids within T sightings.

    Draws are a function of the seed and their number.
    """
    salt = mix(np.uint64(seed) + GOLDEN)
    for i in range(ids.size):
        threshold = threshold_of(ids[i], thresholds)
        number = np.uint64(first_draw + i)
        draw = np.int64(mix(salt + GOLDEN * number) & LOW_32)
        if threshold <= 0:
            out[i] = True
        elif is_equal:
            root = np.float32(0.05) ** (np.float32(1) / np.float32(threshold))
            p = np.float64(np.float32(1) - root)
            is_never = (1.0 - p) ** counts[i]
            out[i] = draw < (2.0**32 - 1) * (1.0 - is_never)
        else:
            # A count above T admits at any draw; cutting it keeps the product in 64 bits.
            out[i] = draw * threshold < (2**32 - 1) * min(counts[i], threshold + 1)


@kernel
def merge_block(source: Cells, target: Cells, layout: CellLayout) -> int:
    """Put the cells of one filter's block into that of another; how many cells that filled.

    A cell does not tell where the search for its id begins, so it stays where it is or moves up
    past taken cells: every cell before it in its search is taken in the union too, and the search
    still comes by. Where it may now end earlier, at a cell of equal signature, that one gets the
    higher count of the two: no id is counted lower than it was. A cell that moves out of reach, or
    finds no place, belongs to a search that meets taken cells only: a plain filter admits its id, a
    ring counts it anew in the next block.
    """
    filled = 0
    for at in range(source.size):
        cell = np.int64(source[at])
        if cell == 0:
            continue
        near = at - 1
        while near >= 0 and near > at - layout.max_steps and source[near] != 0:
            raise_to(target, near, cell, layout)
            near -= 1
        last = min(target.size, at + layout.max_steps)
        place = at
        while place < last and target[place] != 0 and not raise_to(target, place, cell, layout):
            place += 1
        if place == last or target[place] != 0:
            continue
        target[place] = cell
        filled += 1
        near = place + 1
        while near < min(target.size, place + layout.max_steps) and target[near] != 0:
            raise_to(target, place, np.int64(target[near]), layout)
            near += 1
    return filled


@kernel
def raise_to(cells: Cells, at: int, other: np.int64, layout: CellLayout) -> bool:
    """Give a cell the count of `other` if that is higher and the signatures are equal.

    Whether they are.
    """
    cell = np.int64(cells[at])
    if cell == 0 or cell >> layout.count_bits != other >> layout.count_bits:
        return False
    cells[at] = max(cell, other)
    return True
