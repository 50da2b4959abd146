"""The ids of a batch: searched, split by server, and kept for all calls that use them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.errors import DtypeMismatch, NonFiniteValue, ShapeMismatch
from megalith.schema.checks import as_array
from megalith.wire.routing import NUM_BUCKETS, Routing, decode_owners

_RECENT = 3  # batches of a table: with pulls two ahead, a push is for the third last


@dataclass(frozen=True, slots=True)
class Partition:
    """The distinct ids of a batch in the order of the wire.

    Those of server 0 come first, each server's in the order of appearance. Server p has
    `ids[bounds[p]:bounds[p + 1]]`. `slots` leads from each position of the batch to its id in
    `ids`.
    """

    ids: NDArray[np.int64]
    bounds: NDArray[np.int64]
    slots: NDArray[np.int32]

    @classmethod
    def of(
        cls, ids: NDArray[np.int64], routing: Routing, *, is_distinct: bool = False
    ) -> "Partition":
        """The ids as `checked_ids` gives them.

        `is_distinct` promises that none is repeated, and saves the search.
        """
        from megalith.kernels import distinct

        numbers = None
        found = ids

        if not is_distinct:
            found = np.empty(ids.size, np.int64)
            numbers = np.empty(ids.size, np.int32)

            num_distinct = distinct.distinct(distinct.SECRET, ids, found, numbers)
            found = found[:num_distinct]

        num_servers = len(routing.addresses)
        servers = np.empty(found.size, np.int32)
        counts = np.zeros(num_servers, np.int64)
        distinct.find_servers(found, routing.owners, servers, counts)

        ends = np.cumsum(counts)
        bounds = np.concatenate([[0], ends])
        nexts = bounds[:-1].copy()  # where each server's next id goes: the kernel moves them on

        ordered = np.empty(found.size, np.int64)
        positions = np.empty(found.size, np.int32)
        distinct.sort_by_server(found, servers, nexts, ordered, positions)

        if numbers is None or found.size == ids.size:  # all distinct: number i is position i
            return cls(ordered, bounds, positions)

        distinct.follow(positions, numbers, numbers)
        return cls(ordered, bounds, numbers)

    def parts(self) -> Iterator[tuple[int, slice]]:
        """(ps index, its range of `ids`) of every server that has any."""
        bounds = self.bounds.tolist()
        for index, (begin, end) in enumerate(itertools.pairwise(bounds)):
            if begin < end:
                yield index, slice(begin, end)

    def summed(self, gradients: NDArray[np.float32], dim: int | None = None) -> NDArray[np.float32]:
        """Gradients in the order of `ids`; those of equal ids are added, in the order of the batch.

        Columns from `dim` on are no gradients but the rows that were pulled for them: the first of
        an id stays.
        """
        from megalith.client._kernels import rows

        width = gradients.shape[1]
        shape = (self.ids.size, width)

        if not self.has_repeated:
            out = np.empty(shape, np.float32)
            rows.scatter(gradients, self.slots, out)
            return out

        out = np.zeros(shape, np.float32)
        rows.add(gradients, self.slots, out)

        if dim is not None and dim < width:
            # Backwards, so that the last to be written is an id's first.
            slots = self.slots[::-1]
            out[slots, dim:] = gradients[::-1, dim:]

        return out

    @property
    def has_repeated(self) -> bool:
        """Whether an id of the batch occurs twice."""
        return self.ids.size < self.slots.size

    def spread(self, received: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows in the order of `ids` to the order of the batch."""
        from megalith.client._kernels import rows

        num_rows = self.slots.size
        width = received.shape[1]
        out = np.empty((num_rows, width), np.float32)

        rows.gather(received, self.slots, out)
        return out


def checked_ids(table: str, ids: ArrayLike) -> NDArray[np.int64]:
    """Ids as a contiguous int64 vector; floats are refused rather than cut off."""
    what = f"table {table}: ids" if table else "ids"
    array = as_array(ids, what)
    if array.size == 0:
        return np.empty(0, np.int64)

    are_integers = array.dtype.kind in "iu"
    if not are_integers or array.ndim != 1:
        error = ShapeMismatch if are_integers else DtypeMismatch
        shape = list(array.shape)
        found = f"{array.dtype} {shape}"

        raise error(f"{what} are {found}, expected a vector of int64")

    return np.ascontiguousarray(array, np.int64)


def checked_rows(
    table: str,
    what: str,
    given: ArrayLike,
    count: int,
    *,
    skips_nonfinite: bool = False,
) -> NDArray[np.float32]:
    """Gradients or values as a contiguous float32 matrix with a row per id.

    It is finite, unless the table skips what is not.
    """
    from megalith.kernels.finite import is_finite

    array: NDArray[Any] = as_array(given, f"table {table}: {what}")
    are_floats = array.dtype.kind == "f"
    if not are_floats or array.ndim != 2 or len(array) != count:
        error = ShapeMismatch if are_floats else DtypeMismatch
        shape = list(array.shape)
        found = f"{array.dtype} {shape}"

        raise error(f"table {table}: {what} are {found}, expected float32 [{count}, dim]")

    with np.errstate(over="ignore"):  # what does not fit is infinite and refused below
        matrix = np.ascontiguousarray(array, np.float32)

    numbers = matrix.reshape(-1)
    if not is_finite(numbers) and not skips_nonfinite:
        raise NonFiniteValue(f"table {table}: the {what} hold NaN or infinity; nothing was sent")

    return matrix


def check_width(
    table: str, what: str, matrix: NDArray[np.float32], widths: tuple[int, ...]
) -> None:
    """Before rows are summed and split by server.

    A server's refusal would speak of its own part of them.
    """
    num_rows, width = matrix.shape
    if width in widths:
        return

    expected = widths[0]
    raise ShapeMismatch(
        f"table {table}: {what} are [{num_rows}, {width}], "
        f"expected [{num_rows}, {expected}]: "
        f"a row has {expected} columns"
    )


def warm_up() -> None:
    """Compile the kernels, or load them from the cache: else the first pull and push do."""
    owners = decode_owners(bytes(2 * NUM_BUCKETS))
    routing = Routing(1, ("",), owners)

    equal_ids = np.zeros(2, np.int64)
    different_ids = np.arange(2)
    zeros = np.zeros((2, 1), np.float32)
    gradients = checked_rows("warm-up", "gradients", zeros, 2)

    for ids in (equal_ids, different_ids):
        partition = Partition.of(ids, routing, is_distinct=False)
        summed = partition.summed(gradients)
        partition.spread(summed)

    Partition.of(different_ids, routing, is_distinct=True)


class Ids:
    """Ids of one table, for a pull and the push after it.

    The search for distinct ones is done once.

    Parameters
    ----------
    values
        A vector of int64. It must not be changed afterwards.
    distinct
        A promise that no id occurs twice, which saves the search. If it is broken, the servers
        refuse the push (DuplicateIds).
    """

    def __init__(self, values: ArrayLike, *, distinct: bool = False) -> None:
        self._values = checked_ids("", values)
        self._is_distinct = distinct
        self._routed: tuple[Routing, Partition] | None = None

    def __len__(self) -> int:
        return self._values.size

    @property
    def is_distinct(self) -> bool:
        """Whether it was promised that no id occurs twice."""
        return self._is_distinct

    @property
    def values(self) -> NDArray[np.int64]:
        """As given."""
        return self._values

    def partition(self, routing: Routing) -> Partition:
        """Split by the servers of a map; kept for the next call with the same owners."""
        routed = self._routed  # one read: another thread may replace it

        if routed is not None:
            before, partition = routed
            if before is routing or np.array_equal(before.owners, routing.owners):
                return partition

        partition = Partition.of(self._values, routing, is_distinct=self._is_distinct)
        self._routed = routing, partition
        return partition


class RecentIds:
    """The last batches of each table.

    The push after a pull, as a rule, has its ids, and need not search them again. Plain arrays are
    recognised by their contents, compared with a copy: a batch of 106,496 ids takes 0.02 ms, the
    search for its 42,000 distinct ones and their servers 0.67 (AMD EPYC). Any number of threads
    may ask: an entry is replaced as a whole, and a lost one is made again.
    """

    def __init__(self) -> None:
        self._by_table: dict[str, tuple[Ids, ...]] = {}

    def partition(self, table: str, ids: ArrayLike | Ids, routing: Routing) -> Partition:
        """The partition of ids given in either form."""
        if isinstance(ids, Ids):
            return ids.partition(routing)

        values = checked_ids(table, ids)
        known = self._by_table.get(table, ())

        for recent in known:
            if np.array_equal(recent.values, values):
                return recent.partition(routing)

        new = Ids(values.copy())
        kept = known[: _RECENT - 1]
        self._by_table[table] = (new, *kept)

        return new.partition(routing)
