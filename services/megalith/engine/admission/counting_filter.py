"""Admission by counting: a new id has to be seen several times before it gets a row."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.engine.admission.sightings import check_sightings
from megalith.engine.kernels import admission as kernels
from megalith.engine.kernels.admission import COUNTERS, CellLayout
from megalith.errors import CheckpointDamaged, InvalidSetting
from megalith.kernels.dtypes import I32, I64, Bools

_SPARE_CELLS = 64
_PLAIN_STEPS = 64
_SLIDING_STEPS = 16
_SLIDING_FILL_RATE = 1.2
_MIN_CAPACITY = 300
_MIN_RING = 5
# By bytes of a cell; the rest is signature, of which 16 bits are enough
_COUNT_BITS = {1: 4, 2: 4, 4: 16}
_STATE = ("layout", "counters", "elements", "blocks", "cells")


class CountingFilter:
    """An id of threshold T is admitted at its T+1-th sighting: it had been seen T times before.

    `plain` counts for ever, and admits whatever finds no cell when it is full. `sliding` forgets
    ids that were not seen for about `capacity` newer ones. Counts stop at 15 with cells of 1 or 2
    bytes and at 65535 with 4; a threshold above that could never be reached and is refused. (In
    Monolith such ids are never admitted.)

    The lock guards cells and counters; it is held for one kernel call, which releases the GIL, and
    while the state is copied or replaced. Cells are allocated at once but cost memory only where
    they are written.
    """

    def __init__(self, thresholds: I32, layout: CellLayout, cell_bytes: int) -> None:
        """Use `plain` or `sliding`."""
        limit = (1 << layout.count_bits) - 1
        highest = thresholds.max()
        if highest > limit:
            raise InvalidSetting(
                f"admission: threshold {highest} is above {limit}, "
                f"where cells of {cell_bytes} bytes stop"
            )

        if layout.total_size >= 2**32:
            raise InvalidSetting(
                f"admission: {layout.total_size} cells a block are too many; use a larger split_num"
            )

        self.thresholds = thresholds  # by slot; replaced as a whole, for the next call
        self.layout = layout

        self._lock = threading.Lock()
        self._cells = np.zeros(layout.ring * layout.num_cells, f"u{cell_bytes}")
        self._elements = np.zeros(layout.ring, np.int64)
        self._counters = np.zeros(COUNTERS, np.int64)

    @classmethod
    def plain(
        cls, thresholds: I32, capacity: int, fill_rate: float = 1.5, cell_bytes: int | None = None
    ) -> "CountingFilter":
        """One block of capacity * fill_rate cells.

        The smallest cells that hold the thresholds are the default.
        """
        if capacity < 1 or not 1 <= fill_rate < 1000:
            raise InvalidSetting(
                f"admission: capacity {capacity} with fill_rate {fill_rate}; both must be 1 or more"
            )

        cell_bytes = _cell_bytes(thresholds, cell_bytes)
        layout = _layout(1, capacity, fill_rate, _PLAIN_STEPS, cell_bytes)
        return cls(thresholds, layout, cell_bytes)

    @classmethod
    def sliding(
        cls, thresholds: I32, capacity: int, split_num: int = 7, cell_bytes: int | None = None
    ) -> "CountingFilter":
        """A ring of `split_num` blocks that together remember about `capacity` ids.

        There are at least 5 blocks and room for 300 ids.
        """
        if capacity < 1 or split_num < 1:
            raise InvalidSetting(
                f"admission: capacity {capacity} and split_num {split_num} must be 1 or more"
            )

        ring = max(split_num, _MIN_RING)
        block_capacity = max(capacity, _MIN_CAPACITY) // (ring - 1)
        if block_capacity < 2:
            raise InvalidSetting(
                f"admission: split_num {split_num} leaves a capacity of {block_capacity} to a block"
            )

        cell_bytes = _cell_bytes(thresholds, cell_bytes)
        layout = _layout(ring, block_capacity, _SLIDING_FILL_RATE, _SLIDING_STEPS, cell_bytes)
        return cls(thresholds, layout, cell_bytes)

    def admit(self, ids: I64, counts: I64) -> Bools:
        """Count `counts[i]` sightings of ids[i], in order, and say which ids may now have a row.

        Ask only about ids that have none. Ids whose slot has threshold 0 are admitted and not
        counted.
        """
        check_sightings(ids, counts)
        out = np.empty(ids.size, np.bool_)
        with self._lock:
            kernels.admit_counted(
                ids,
                counts,
                self.thresholds,
                self.layout,
                self._cells,
                self._elements,
                self._counters,
                out,
            )

        return out

    def counts_of(self, ids: I64) -> I64:
        """How often each id was seen, as far as the filter remembers."""
        check_sightings(ids, np.ones_like(ids))
        out = np.empty(ids.size, np.int64)
        with self._lock:
            kernels.read_counts(ids, self.layout, self._cells, self._counters, out)

        return out

    @property
    def num_elements(self) -> int:
        """Ids held, counting once per block that holds them."""
        with self._lock:
            return int(self._elements.sum())

    @property
    def num_failures(self) -> int:
        """Sightings for which no cell was found; such ids are admitted."""
        with self._lock:
            return int(self._counters[kernels.FAILURES])

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._cells[:] = 0
            self._elements[:] = 0
            self._counters[:] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """A copy of all that `restore` needs. Blocks without an id are left out of `cells`.

        The lock is held for one block at a time, from the newest on: an id that moves to the head
        meanwhile is copied in its old block at least.
        """
        ring = self.layout.ring
        cells = self._cells.reshape(ring, -1)
        elements = np.zeros(ring, np.int64)
        copies = {}

        with self._lock:
            counters = self._counters.copy()

        oldest = counters[kernels.HEAD] + 2
        newest_first = np.arange(ring)[::-1] + oldest

        for block in newest_first % ring:
            with self._lock:
                held = self._elements[block]
                if held:
                    elements[block] = held
                    copies[int(block)] = cells[block].copy()

        blocks = sorted(copies)
        copied = np.array([copies[block] for block in blocks], cells.dtype)

        return {
            "layout": np.array(self.layout, np.int64),
            "counters": counters,
            "elements": elements,
            "blocks": np.array(blocks, np.int64),
            "cells": copied.reshape(-1, self.layout.num_cells),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a saved state; one that does not fit is refused and changes nothing."""
        missing = [name for name in _STATE if name not in state]
        if missing:
            names = ", ".join(missing)
            raise CheckpointDamaged(f"admission: the saved filter lacks {names}")

        saved = tuple(int(number) for number in state["layout"])
        if saved != tuple(self.layout):
            raise InvalidSetting(
                f"admission: the saved filter has layout {saved}, this one {self.layout}"
            )

        self._check_fits(state)

        with self._lock:
            self._cells[:] = 0
            by_block = self._cells.reshape(self.layout.ring, -1)
            by_block[state["blocks"]] = state["cells"]

            self._elements[:] = state["elements"]
            self._counters[:] = state["counters"]

    def _check_fits(self, state: Mapping[str, NDArray[Any]]) -> None:
        ring = self.layout.ring
        blocks = state["blocks"]
        counters = state["counters"]
        elements = state["elements"]
        cells = state["cells"]
        fits = (
            counters.shape == (COUNTERS,)
            and elements.shape == (ring,)
            and np.array_equal(blocks, np.flatnonzero(elements))
            and cells.shape == (len(blocks), self.layout.num_cells)
            and cells.dtype == self._cells.dtype
            and 0 <= counters[kernels.HEAD] < ring
            and counters.min() >= 0
        )

        if not fits:
            shapes = {}
            for name in _STATE:
                array = state[name]
                shapes[name] = (str(array.dtype), array.shape)

            raise CheckpointDamaged(f"admission: the saved filter contradicts itself: {shapes}")


def _cell_bytes(thresholds: I32, wanted: int | None) -> int:
    if wanted is not None and wanted not in _COUNT_BITS:
        raise InvalidSetting(f"admission: cells of {wanted} bytes; there are {sorted(_COUNT_BITS)}")
    if wanted:
        return wanted

    limit = 1 << _COUNT_BITS[2]
    return 2 if thresholds.max() < limit else 4


def _layout(
    ring: int, block_capacity: int, fill_rate: float, max_steps: int, cell_bytes: int
) -> CellLayout:
    total_size = int(block_capacity * fill_rate)
    count_bits = _COUNT_BITS[cell_bytes]
    return CellLayout(
        ring=ring,
        block_capacity=block_capacity,
        total_size=total_size,
        num_cells=total_size + _SPARE_CELLS,
        max_steps=max_steps,
        count_bits=count_bits,
        signature_bits=8 * cell_bytes - count_bits,
        forward=min(2, ring),
        backward=max(ring - 2, 0),
    )
