"""Rows of a batch's distinct ids to the arrays of a layout, and gradients of these back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.client._features.combiners import Combiner, FirstN, Mean, Sqrtn
from megalith.client._features.layout import PartTarget
from megalith.client._features.ragged import Ragged
from megalith.kernels.dtypes import F32


@dataclass(frozen=True, slots=True)
class Uses:
    """Where the rows of a feature's ids are: use i is row `positions[i]` of its table.

    `splits` cut uses into examples.
    """

    table: str
    positions: NDArray[np.int32]
    splits: NDArray[np.int64]
    is_shared: bool

    def examples(self, start: int, stop: int) -> "Uses":
        """The uses of some examples; a list that all examples share stays whole."""
        if self.is_shared:
            return self

        first = self.splits[start]
        last = self.splits[stop]
        splits = self.splits[start : stop + 1] - first
        return Uses(self.table, self.positions[first:last], splits, False)


def locate(table: str, lists: Mapping[str, Ragged]) -> tuple[NDArray[np.int64], dict[str, Uses]]:
    """The distinct ids of all features of a table, and where each feature's uses are in them.

    They are in the order of their first appearance.
    """
    from megalith.kernels import distinct

    ids = np.concatenate([ragged.values for ragged in lists.values()])
    found = np.empty(ids.size, np.int64)
    numbers = np.empty(ids.size, np.int32)
    count = distinct.distinct(distinct.SECRET, ids, found, numbers)

    uses = {}
    start = 0

    for name, ragged in lists.items():
        end = start + ragged.values.size
        uses[name] = Uses(table, numbers[start:end], ragged.row_splits, ragged.is_shared)
        start = end

    return found[:count], uses


def combine(combiner: Combiner, target: PartTarget, uses: Uses, rows: F32, output: F32) -> None:
    """Add a part to the array that it belongs to, [B, ...], which starts at zero."""
    lines = output.reshape(len(output), -1)
    if not uses.is_shared:
        _combine(combiner, target, uses, rows, lines)
        return

    line = np.zeros((1, lines.shape[1]), np.float32)
    _combine(combiner, target, uses, rows, line)
    lines += line


def spread(
    combiner: Combiner, target: PartTarget, uses: Uses, rows: F32, gradient: F32, sums: F32
) -> None:
    """Add the gradient of a part, [B, ...], to the gradients of the rows it came from."""
    from megalith.client._kernels import pooling

    lines = gradient.reshape(len(gradient), -1)
    if uses.is_shared:
        lines = lines.sum(axis=0, keepdims=True)

    columns = (target.first, target.width, target.base)
    match combiner:
        case FirstN():
            pooling.spread_first(lines, uses.positions, uses.splits, target.stride, *columns, sums)
        case Sqrtn():
            pooling.spread_roots(lines, rows, uses.positions, uses.splits, *columns, sums)
        case _:
            pooling.spread_sums(
                lines,
                uses.positions,
                uses.splits,
                isinstance(combiner, Mean),
                *columns,
                sums,
            )


def rows_used(uses: Sequence[Uses], count: int) -> NDArray[np.bool_]:
    """Which of a table's `count` distinct ids are used."""
    from megalith.client._kernels import pooling

    used = np.zeros(count, np.bool_)
    for part in uses:
        pooling.mark(part.positions, used)

    return used


def _combine(combiner: Combiner, target: PartTarget, uses: Uses, rows: F32, lines: F32) -> None:
    from megalith.client._kernels import pooling

    columns = (target.first, target.width, target.base)
    match combiner:
        case FirstN():
            pooling.copy_first(rows, uses.positions, uses.splits, target.stride, *columns, lines)
        case Sqrtn():
            pooling.add_roots(rows, uses.positions, uses.splits, *columns, lines)
        case _:
            pooling.add_sums(
                rows,
                uses.positions,
                uses.splits,
                isinstance(combiner, Mean),
                *columns,
                lines,
            )
