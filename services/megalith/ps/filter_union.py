"""The state of one counting filter made of several: what a server inherits when the number of servers changed.

A cell holds a few bits of an id, not the id, so nobody can tell which of the new servers it belongs to. A server takes
the filters of all servers whose buckets it now has, whole: rather too much is remembered than too little. Cells of ids
that went elsewhere are not asked for, and age out. Where all of it exceeds the capacity, the oldest is forgotten, as
always. With as many servers as before, or a multiple, every filter continues bit by bit.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.ps.kernels.admission import (
    COUNTERS,
    FAILURES,
    HEAD,
    HEAD_INCREMENT,
    Layout,
    merge_block,
)
from megalith.wire.errors import CheckpointDamaged

State = Mapping[str, NDArray[Any]]
# Blocks are joined while the result stays this full. In half-full blocks searches are short, and every cell keeps its
# place; full ones are joined only where the ring is too short to keep them apart.
_SHARES = (0.5, 1.0)


class _Block(NamedTuple):
    """One block of a filter, with the number of ids in it."""

    elements: int
    cells: NDArray[Any]


def union_of(states: Sequence[State]) -> State:
    """One state, as `CountingFilter.restore` takes it. A single state is left as it is."""
    if len(states) == 1:
        return states[0]
    if any(not np.array_equal(state["layout"], states[0]["layout"]) for state in states):
        raise CheckpointDamaged("admission: the filters of one checkpoint have different layouts")
    layout = Layout(*(int(number) for number in states[0]["layout"]))
    joined = _joined(_newest_first(states, layout), layout)
    elements, counters = np.zeros(layout.ring, np.int64), np.zeros(COUNTERS, np.int64)
    counters[HEAD] = counters[HEAD_INCREMENT] = max(0, len(joined) - 1)
    counters[FAILURES] = sum(int(state["counters"][FAILURES]) for state in states)
    in_order = joined[::-1]  # the head, which is the newest, comes last
    elements[: len(joined)] = [block.elements for block in in_order]
    cells = np.empty((len(joined), layout.num_cells), states[0]["cells"].dtype)
    for number, block in enumerate(in_order):
        cells[number] = block.cells
    return {
        "layout": states[0]["layout"],
        "counters": counters,
        "elements": elements,
        "blocks": np.arange(len(joined)),
        "cells": cells,
    }


def _newest_first(states: Sequence[State], layout: Layout) -> list[_Block]:
    """The used blocks that are still remembered, those of all filters by turns, from the heads back."""
    blocks = []
    for age in (0, -1, *range(1, layout.backward + 1)) if layout.ring > 1 else (0,):
        for state in states:
            at = (int(state["counters"][HEAD]) - age) % layout.ring
            if age <= state["counters"][HEAD_INCREMENT] and state["elements"][at]:
                row = int(np.searchsorted(state["blocks"], at))
                blocks.append(_Block(int(state["elements"][at]), state["cells"][row]))
    return blocks


def _joined(blocks: list[_Block], layout: Layout) -> list[_Block]:
    """At most as many blocks as a filter remembers, neighbours joined; what does not fit is the oldest."""
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


def _merged(group: list[_Block], layout: Layout) -> _Block:
    elements, cells = group[0].elements, group[0].cells.copy()
    for block in group[1:]:
        elements += int(merge_block(block.cells, cells, layout))
    return _Block(min(elements, layout.block_capacity), cells)
