"""The rows of a batch's distinct ids to the arrays of a layout, and gradients of these back to the rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.client._combiners import Combiner, FirstN, Mean, Sqrtn
from megalith.client._layout import Place
from megalith.client._ragged import Ragged

F32 = NDArray[np.float32]

_ONE_SERVER = np.zeros(
    1024, np.uint16
)  # the search for distinct ids counts them by server; here one is enough


@dataclass(frozen=True, slots=True)
class Uses:
    """Where the rows of a feature's ids are: use i is row `places[i]` of its table; `splits` cut uses into examples."""

    table: str
    places: NDArray[np.int32]
    splits: NDArray[np.int64]
    is_shared: bool


def locate(table: str, lists: Mapping[str, Ragged]) -> tuple[NDArray[np.int64], dict[str, Uses]]:
    """The distinct ids of all features of a table, by first appearance, and where each feature's uses are in them."""
    from megalith.client._kernels import distinct

    ids = np.concatenate([ragged.values for ragged in lists.values()])
    keys, servers = np.empty(ids.size, np.int64), np.empty(ids.size, np.int32)
    numbers = np.empty(ids.size, np.int32)
    count = distinct.distinct(
        distinct.SECRET, ids, _ONE_SERVER, keys, servers, numbers, np.zeros(1, np.int64)
    )
    parts = np.split(numbers, np.cumsum([ragged.values.size for ragged in lists.values()])[:-1])
    uses = {
        name: Uses(table, places, ragged.row_splits, ragged.is_shared)
        for (name, ragged), places in zip(lists.items(), parts, strict=True)
    }
    return keys[:count], uses


def combine(combiner: Combiner, place: Place, uses: Uses, rows: F32, output: F32) -> None:
    """Add a part to the array that it has its place in, [B, ...], which starts at zero."""
    lines = output.reshape(len(output), -1)
    if not uses.is_shared:
        _combine(combiner, place, uses, rows, lines)
        return
    line = np.zeros((1, lines.shape[1]), np.float32)
    _combine(combiner, place, uses, rows, line)
    lines += line


def spread(
    combiner: Combiner, place: Place, uses: Uses, rows: F32, gradient: F32, sums: F32
) -> None:
    """Add the gradient of a part, [B, ...], to the gradients of the rows it came from."""
    from megalith.client._kernels import pooling

    lines = gradient.reshape(len(gradient), -1)
    if uses.is_shared:
        lines = lines.sum(axis=0, keepdims=True)
    columns = (place.first, place.width, place.base)
    match combiner:
        case FirstN():
            pooling.spread_first(lines, uses.places, uses.splits, place.stride, *columns, sums)
        case Sqrtn():
            pooling.spread_roots(lines, rows, uses.places, uses.splits, *columns, sums)
        case _:
            pooling.spread_sums(
                lines, uses.places, uses.splits, isinstance(combiner, Mean), *columns, sums
            )


def rows_used(uses: Sequence[Uses], count: int) -> NDArray[np.bool_]:
    """Which of a table's `count` distinct ids are used."""
    from megalith.client._kernels import pooling

    used = np.zeros(count, np.bool_)
    for part in uses:
        pooling.mark(part.places, used)
    return used


def _combine(combiner: Combiner, place: Place, uses: Uses, rows: F32, lines: F32) -> None:
    from megalith.client._kernels import pooling

    columns = (place.first, place.width, place.base)
    match combiner:
        case FirstN():
            pooling.copy_first(rows, uses.places, uses.splits, place.stride, *columns, lines)
        case Sqrtn():
            pooling.add_roots(rows, uses.places, uses.splits, *columns, lines)
        case _:
            pooling.add_sums(
                rows, uses.places, uses.splits, isinstance(combiner, Mean), *columns, lines
            )
