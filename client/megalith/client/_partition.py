"""Ids of a batch to the servers that own them, and their rows back in the order of the batch."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.wire import arrays
from megalith.wire.errors import DtypeMismatch, NonFiniteValue, ShapeMismatch
from megalith.wire.routing import NUM_BUCKETS, Routing, decode_owners


@dataclass(frozen=True, slots=True)
class Partition:
    """The distinct ids of a batch in the order of the wire: those of server 0 first, each server's by appearance.

    Server p has `keys[bounds[p]:bounds[p + 1]]`. `slots` leads from each position of the batch to its id in `keys`.
    """

    keys: NDArray[np.int64]
    bounds: NDArray[np.int64]
    slots: NDArray[np.int32]

    @classmethod
    def of(
        cls, ids: NDArray[np.int64], routing: Routing, *, is_distinct: bool = False
    ) -> "Partition":
        """The ids as `checked_ids` gives them. `is_distinct` promises that none is repeated, and saves the search."""
        from megalith.client._kernels import distinct

        counts = np.zeros(len(routing.addresses), np.int64)
        servers, numbers, found = np.empty(ids.size, np.int32), None, ids
        if is_distinct:
            distinct.number_all(ids, routing.owners, servers, counts)
        else:
            found, numbers = np.empty(ids.size, np.int64), np.empty(ids.size, np.int32)
            found = found[
                : distinct.distinct(
                    distinct.SECRET, ids, routing.owners, found, servers, numbers, counts
                )
            ]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        keys, places = np.empty(found.size, np.int64), np.empty(found.size, np.int32)
        distinct.sort_by_server(found, servers, bounds[:-1].copy(), keys, places)
        if numbers is None or found.size == ids.size:  # all distinct: number i is position i
            return cls(keys, bounds, places)
        distinct.follow(places, numbers, numbers)
        return cls(keys, bounds, numbers)

    def parts(self) -> Iterator[tuple[int, slice]]:
        """(ps index, its range of `keys`) of every server that has any."""
        bounds = self.bounds.tolist()
        for index, (begin, end) in enumerate(itertools.pairwise(bounds)):
            if begin < end:
                yield index, slice(begin, end)

    def summed(self, gradients: NDArray[np.float32], dim: int | None = None) -> NDArray[np.float32]:
        """Gradients in the order of `keys`; those of equal ids are added, in the order of the batch.

        Columns from `dim` on are no gradients but the rows that were pulled for them: the first of an id stays.
        """
        from megalith.client._kernels import rows

        if self.keys.size == self.slots.size:
            out = np.empty((self.keys.size, gradients.shape[1]), np.float32)
            rows.place(gradients, self.slots, out)
        else:
            out = np.zeros((self.keys.size, gradients.shape[1]), np.float32)
            rows.add(gradients, self.slots, out)
            if dim is not None and dim < gradients.shape[1]:
                out[self.slots[::-1], dim:] = gradients[
                    ::-1, dim:
                ]  # the last to be written is an id's first
        return out

    @property
    def has_repeated(self) -> bool:
        """Whether an id of the batch occurs twice."""
        return self.keys.size < self.slots.size

    def spread(self, received: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows in the order of `keys` to the order of the batch."""
        from megalith.client._kernels import rows

        out = np.empty((self.slots.size, received.shape[1]), np.float32)
        rows.gather(received, self.slots, out)
        return out


def checked_ids(table: str, ids: ArrayLike) -> NDArray[np.int64]:
    """Ids as a contiguous int64 vector; floats are refused rather than cut off."""
    array = arrays.as_array(ids, f"table {table}: ids" if table else "ids")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        where = f"table {table}: " if table else ""
        error = ShapeMismatch if array.dtype.kind in "iu" else DtypeMismatch
        raise error(f"{where}ids are {array.dtype} {list(array.shape)}, expected a vector of int64")
    return np.ascontiguousarray(array, np.int64)


def checked_rows(
    table: str,
    what: str,
    given: ArrayLike,
    count: int,
    skips_nonfinite: Callable[[str], bool] = lambda table: False,
) -> NDArray[np.float32]:
    """Gradients or values as a contiguous float32 matrix with a row per id, finite unless the table skips others."""
    from megalith.client._kernels import rows

    array: NDArray[Any] = arrays.as_array(given, f"table {table}: {what}")
    if array.dtype.kind != "f" or array.ndim != 2 or len(array) != count:
        error = ShapeMismatch if array.dtype.kind == "f" else DtypeMismatch
        raise error(
            f"table {table}: {what} are {array.dtype} {list(array.shape)}, expected float32 [{count}, dim]"
        )
    with np.errstate(over="ignore"):  # what does not fit is infinite and refused below
        matrix = np.ascontiguousarray(array, np.float32)
    if not rows.is_finite(matrix.reshape(-1)) and not skips_nonfinite(table):
        raise NonFiniteValue(f"table {table}: the {what} hold NaN or infinity; nothing was sent")
    return matrix


def check_width(
    table: str, what: str, matrix: NDArray[np.float32], widths: tuple[int, ...]
) -> None:
    """Before rows are summed and split by server: a server's refusal would speak of its own part of them."""
    if matrix.shape[1] not in widths:
        raise ShapeMismatch(
            f"table {table}: {what} are {list(matrix.shape)}, expected [{len(matrix)}, {widths[0]}]: "
            f"a row has {widths[0]} columns"
        )


def warm_up() -> None:
    """Compile the kernels, or load them from the cache: else the first pull and push do."""
    routing = Routing(1, ("",), decode_owners(bytes(2 * NUM_BUCKETS)))
    for ids in (np.zeros(2, np.int64), np.arange(2)):
        partition = Partition.of(ids, routing, is_distinct=False)
        partition.spread(
            partition.summed(checked_rows("warm-up", "gradients", np.zeros((2, 1), np.float32), 2))
        )
    Partition.of(ids, routing, is_distinct=True)
