"""The ids of one feature in a batch: a list of any length per example."""

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from megalith.errors import DtypeMismatch, InvalidRequest, ShapeMismatch
from megalith.schema.checks import as_array


class Ragged:
    """Ids in one vector; example b has `values[row_splits[b]:row_splits[b + 1]]`.

    Arrays are checked when it is made, and not copied. A lookup checks them again and copies what
    it keeps, so a reader may fill the same arrays anew for the next batch.

    Row splits start at 0, never fall and end at the number of values: anything else is
    ShapeMismatch. `is_shared` says that there is one list, which every example of the batch has,
    such as the user of a page of items.
    """

    def __init__(
        self, values: ArrayLike, row_splits: ArrayLike, *, is_shared: bool = False
    ) -> None:
        self.values = _integers(values, "values")
        self.row_splits = _integers(row_splits, "row_splits")
        self.is_shared = is_shared

        splits = self.row_splits
        if splits.size == 0 or splits[0] != 0:
            start = splits[:1].tolist()
            raise ShapeMismatch(f"ragged: row_splits start with {start}, expected 0")

        num_values = self.values.size
        if splits[-1] != num_values:
            raise ShapeMismatch(
                f"ragged: row_splits end at {splits[-1]}, but there are {num_values} values"
            )

        lengths = np.diff(splits)
        falls = np.flatnonzero(lengths < 0)

        if falls.size:
            first = falls[0]
            raise ShapeMismatch(
                f"ragged: row_splits fall after position {first}, from {splits[first]}"
            )

        if is_shared and lengths.size != 1:
            raise ShapeMismatch(f"ragged: a shared list is one, this has {lengths.size} rows")

    @classmethod
    def of(cls, ids: "Ragged | ArrayLike | Sequence[Iterable[int]]") -> "Ragged":
        """Ids from a vector, a matrix or a list of lists of any lengths.

        A vector has one id per example, a matrix a line.
        """
        if isinstance(ids, Ragged):
            return ids

        if isinstance(ids, list | tuple):
            are_lists = [isinstance(row, list | tuple | np.ndarray) for row in ids]
            if any(are_lists):
                if not all(are_lists):
                    raise InvalidRequest(
                        "ragged: a list of lists and single values, "
                        "expected a list of ids per example"
                    )

                return cls._of_lists(ids)

        array = as_array(ids, "ragged: ids")
        if array.ndim not in (1, 2):
            raise ShapeMismatch(
                f"ragged: ids of shape {list(array.shape)}, expected a vector or a matrix"
            )

        num_examples = len(array)
        if array.size == 0:
            return cls(np.empty(0, np.int64), np.zeros(num_examples + 1, np.int64))

        ids_each = array.size // num_examples
        return cls(array.reshape(-1), np.arange(num_examples + 1) * ids_each)

    @classmethod
    def _of_lists(cls, lists: Sequence[Any]) -> "Ragged":
        lengths = [len(row) for row in lists]
        joined = list(itertools.chain.from_iterable(lists))
        values = np.empty(0, np.int64)
        if joined:
            values = as_array(joined, "ragged: values")

        return cls(values, np.cumsum([0, *lengths]))

    @classmethod
    def shared(cls, ids: ArrayLike) -> "Ragged":
        """One list for all examples of a batch: it is looked up and pooled once."""
        values = _integers(ids, "values")
        return cls(values, np.array([0, values.size]), is_shared=True)

    @classmethod
    def concat(cls, batches: Sequence["Ragged"]) -> "Ragged":
        """The examples of several batches, one after the other."""
        if not all(isinstance(batch, Ragged) for batch in batches):
            raise InvalidRequest("ragged: concat takes a list of Ragged")

        values: list[NDArray[np.int64]] = []
        splits = [np.zeros(1, np.int64)]
        offset = 0

        for batch in batches:
            values.append(batch.values)
            splits.append(batch.row_splits[1:] + offset)
            offset += batch.values.size

        return cls(_joined(values), _joined(splits))

    def copied(self) -> "Ragged":
        """The same lists in memory of their own.

        They are checked again: who has the arrays may have changed them.
        """
        return Ragged(self.values.copy(), self.row_splits.copy(), is_shared=self.is_shared)

    def __len__(self) -> int:
        """Rows: examples, or 1 for a shared list."""
        return self.row_splits.size - 1

    @cached_property
    def row_ids(self) -> NDArray[np.int64]:
        """The example of each value."""
        return np.repeat(np.arange(len(self)), np.diff(self.row_splits))

    def first(self, limit: int) -> "Ragged":
        """The first `limit` ids of every example."""
        from megalith.client._kernels import pooling

        lengths = np.diff(self.row_splits)
        if lengths.max(initial=0) <= limit:
            return self

        kept_lengths = np.minimum(lengths, limit)
        splits = np.concatenate([[0], np.cumsum(kept_lengths)])
        kept = np.empty(splits[-1], np.int64)
        pooling.cut(self.values, self.row_splits, splits, kept)

        return Ragged(kept, splits, is_shared=self.is_shared)


def _joined(vectors: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *vectors])


def _integers(values: ArrayLike, what: str) -> NDArray[np.int64]:
    array: NDArray[Any] = as_array(values, f"ragged: {what}")
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)

    are_integers = array.dtype.kind in "iu"
    if not are_integers or array.ndim != 1:
        error = ShapeMismatch if are_integers else DtypeMismatch
        shape = list(array.shape)

        raise error(f"ragged: {what} are {array.dtype} {shape}, expected a vector of int64")

    return np.ascontiguousarray(array, np.int64)
