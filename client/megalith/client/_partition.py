"""Ids of a batch to the servers that own them, and their rows back in the order of the batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.wire.errors import InvalidRequest, NonFiniteValue, ShapeMismatch
from megalith.wire.routing import Routing


@dataclass(frozen=True, slots=True)
class Partition:
    """The distinct ids of a batch grouped by server.

    `keys[order]` is the ids sorted by owner; server p has `order[bounds[p]:bounds[p + 1]]`. `inverse` leads from each
    position of the batch to its distinct id.
    """

    keys: NDArray[np.int64]
    inverse: NDArray[np.intp]
    order: NDArray[np.intp]
    bounds: NDArray[np.intp]

    @classmethod
    def of(cls, ids: NDArray[np.int64], routing: Routing) -> "Partition":
        keys, inverse = np.unique(ids, return_inverse=True)
        owners = routing.owner_of(keys)
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(len(routing.addresses) + 1))
        return cls(keys, inverse, order, bounds)

    def parts(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """(ps index, positions in `keys`) of every server that has any."""
        for index in range(self.bounds.size - 1):
            positions = self.order[self.bounds[index] : self.bounds[index + 1]]
            if positions.size:
                yield index, positions

    def summed(self, gradients: NDArray[np.float32]) -> NDArray[np.float32]:
        """Gradients per distinct id; those of equal ids are added."""
        if self.keys.size == self.inverse.size:
            out = np.empty_like(gradients)
            out[self.inverse] = gradients
            return out
        order = np.argsort(self.inverse, kind="stable")
        starts = np.searchsorted(self.inverse[order], np.arange(self.keys.size))
        return np.add.reduceat(gradients[order], starts, axis=0, dtype=np.float32)


def checked_ids(table: str, ids: ArrayLike) -> NDArray[np.int64]:
    """Ids as a contiguous int64 vector; floats are refused rather than cut off."""
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InvalidRequest(f"table {table}: ids are {array.dtype} {list(array.shape)}, expected a vector of int64")
    return np.ascontiguousarray(array, np.int64)


def checked_gradients(table: str, gradients: ArrayLike, count: int) -> NDArray[np.float32]:
    """Gradients as a contiguous, finite float32 matrix with a row per id."""
    array: NDArray[Any] = np.asarray(gradients)
    if array.dtype.kind != "f" or array.ndim != 2 or len(array) != count:
        raise ShapeMismatch(
            f"table {table}: gradients are {array.dtype} {list(array.shape)}, expected float32 [{count}, dim]"
        )
    matrix = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(matrix).all():
        raise NonFiniteValue(f"table {table}: the gradients hold NaN or infinity; nothing was sent")
    return matrix
