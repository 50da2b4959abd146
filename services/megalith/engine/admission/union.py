"""One counting filter's state made of several.

That is what a server inherits when the number of servers changed.

A cell holds a few bits of an id, not the id, so nobody can tell which of the new servers it belongs
to. A server takes the filters of all servers whose buckets it now has, whole: rather too much is
remembered than too little. Cells of ids that went elsewhere are not asked for, and age out. Where
all of it exceeds the capacity, the oldest is forgotten, as always. With as many servers as before,
or a multiple, every filter continues bit by bit.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.engine.kernels.admission import (
    COUNTERS,
    FAILURES,
    HEAD,
    HEAD_INCREMENT,
    CellLayout,
    merge_block,
)
from megalith.errors import CheckpointDamaged

FilterState = Mapping[str, NDArray[Any]]
# Blocks are joined while the result stays this full. In half-full blocks searches are short, and
# every cell keeps its place; full ones are joined only where the ring is too short to keep them
# apart.
_SHARES = (0.5, 1.0)


class _Block(NamedTuple):
    """One block of a filter, with the number of ids in it."""

    elements: int
    cells: NDArray[Any]


def union_of(states: Sequence[FilterState]) -> FilterState:
    """One state, as `CountingFilter.restore` takes it. A single state is left as it is."""
    if len(states) == 1:
        return states[0]

    first = states[0]

    for state in states:
        if not np.array_equal(state["layout"], first["layout"]):
            raise CheckpointDamaged(
                "admission: the filters of one checkpoint have different layouts"
            )

    layout = CellLayout(*(int(number) for number in first["layout"]))
    blocks = _newest_first(states, layout)
    joined = _joined(blocks, layout)
    joined.reverse()  # the head, which is the newest, comes last

    counters = np.zeros(COUNTERS, np.int64)
    head = max(0, len(joined) - 1)
    counters[HEAD] = head
    counters[HEAD_INCREMENT] = head
    counters[FAILURES] = sum(int(state["counters"][FAILURES]) for state in states)

    elements = np.zeros(layout.ring, np.int64)
    cells = np.empty((len(joined), layout.num_cells), first["cells"].dtype)
    for number, block in enumerate(joined):
        elements[number] = block.elements
        cells[number] = block.cells

    return {
        "layout": first["layout"],
        "counters": counters,
        "elements": elements,
        "blocks": np.arange(len(joined)),
        "cells": cells,
    }


def _newest_first(states: Sequence[FilterState], layout: CellLayout) -> list[_Block]:
    """The used blocks that are still remembered, of all filters by turns, from the heads back."""
    ages = [0]
    if layout.ring > 1:
        ages += [-1, *range(1, layout.backward + 1)]

    blocks = []

    for age in ages:
        for state in states:
            counters = state["counters"]
            at = (int(counters[HEAD]) - age) % layout.ring
            elements = int(state["elements"][at])

            if elements and age <= counters[HEAD_INCREMENT]:
                row = int(np.searchsorted(state["blocks"], at))
                cells = state["cells"][row]
                blocks.append(_Block(elements, cells))

    return blocks


def _joined(blocks: list[_Block], layout: CellLayout) -> list[_Block]:
    """At most as many blocks as a filter remembers, neighbours joined.

    What does not fit is the oldest.
    """
    most = layout.backward + 1
    for share in _SHARES:
        groups: list[list[_Block]] = []
        filled = 0
        for block in blocks:
            filled += block.elements
            if not groups or filled > share * layout.block_capacity:
                groups.append([])
                filled = block.elements

            groups[-1].append(block)

        if len(groups) <= most:
            break

    if layout.ring == 1:
        groups = [blocks] if blocks else []

    return [_merged(group, layout) for group in groups[:most]]


def _merged(group: list[_Block], layout: CellLayout) -> _Block:
    newest, *older = group
    elements = newest.elements
    cells = newest.cells.copy()

    for block in older:
        elements += int(merge_block(block.cells, cells, layout))

    return _Block(min(elements, layout.block_capacity), cells)
