"""Checks of what callers hand to a table, before anything is changed: kernels check nothing."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.engine.kernels import batches
from megalith.errors import (
    DuplicateIds,
    InvalidRequest,
    MalformedArray,
    NonFiniteValue,
    ShapeMismatch,
)
from megalith.kernels import distinct
from megalith.kernels.dtypes import F32, I32, I64, Bools
from megalith.kernels.finite import is_finite

MAX_TIME_S = 2**32 - 1  # the year 2106


def check_ids(ids: NDArray[Any], table: str) -> I64:
    if not isinstance(ids, np.ndarray):
        kind = type(ids).__name__
        raise MalformedArray(f"table {table}: ids are a {kind}, need a contiguous int64 vector")

    is_vector = ids.ndim == 1 and ids.flags.c_contiguous
    if ids.dtype != np.int64 or not is_vector:
        raise MalformedArray(
            f"table {table}: ids are {ids.dtype} of shape {ids.shape}, "
            "need a contiguous int64 vector"
        )

    return ids


def check_floats(values: NDArray[Any], rows: int, width: int, table: str, what: str) -> F32:
    if not isinstance(values, np.ndarray):
        kind = type(values).__name__
        raise MalformedArray(f"table {table}: {what} are a {kind}, need contiguous float32")

    is_contiguous = values.flags.c_contiguous
    if values.dtype != np.float32 or not is_contiguous:
        raise MalformedArray(f"table {table}: {what} are {values.dtype}, need contiguous float32")

    need = (rows, width)
    if values.shape != need:
        raise ShapeMismatch(f"table {table}: {what} have shape {values.shape}, need {need}")

    return values


def check_writable(out: NDArray[Any], rows: int, width: int, table: str, what: str) -> F32:
    """An array that a kernel fills."""
    check_floats(out, rows, width, table, what)
    if not out.flags.writeable:
        raise MalformedArray(f"table {table}: {what} are read-only")

    return out


def check_time(time_s: int, table: str) -> int:
    if not 0 <= time_s <= MAX_TIME_S:
        raise InvalidRequest(f"table {table}: time {time_s} is outside 0..{MAX_TIME_S} seconds")
    return int(time_s)


def check_times(times: NDArray[Any], count: int, table: str) -> I64:
    """One time in Unix seconds for each of `count` rows."""
    check_ids(times, table)
    if times.size != count:
        raise ShapeMismatch(f"table {table}: {times.size} times for {count} rows")

    if count:
        check_time(int(times.min()), table)
        check_time(int(times.max()), table)

    return times


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory, read-only.

    That is how arrays come from the wire, and kernels are compiled for it: to a compiler a writable
    array is another type, and a batch with NaN, which is cut out of its array, would wait seconds
    for kernels of its own.
    """
    if not array.flags.writeable:
        return array

    view = array.view()
    view.flags.writeable = False
    return view


def check_distinct(ids: I64, table: str) -> None:
    """Refuse repeated ids where one row can have one value only."""
    count, numbers = _numbered(ids)
    repeated = ids.size - count

    if repeated:
        is_new = numbers == np.arange(ids.size)  # up to the first that is repeated
        first = np.argmin(is_new)
        again = ids[first]

        raise DuplicateIds(
            f"table {table}: {repeated} of {ids.size} ids are repeated, e.g. {again}"
        )


def finite_mask(values: F32) -> Bools | None:
    """None if every number is finite, else which rows are."""
    if is_finite(values.reshape(-1)):
        return None

    mask = np.empty(len(values), np.bool_)
    batches.finite_rows(values, mask)
    return mask


def check_finite(values: F32, table: str, what: str) -> None:
    mask = finite_mask(values)
    if mask is not None:
        bad = np.flatnonzero(~mask)
        raise NonFiniteValue(
            f"table {table}: {what} of {bad.size} rows hold NaN or infinity, "
            f"the first is row {bad[0]}"
        )


def sum_by_id(ids: I64, values: F32, dim: int) -> tuple[I64, F32, I64]:
    """Distinct ids in order of first appearance, the sums of their rows, and their counts.

    Columns from `dim` on are no gradients but the weights that these belong to: the first row of
    an id keeps its own.
    """
    count, numbers = _numbered(ids)
    width = values.shape[1]

    sums = np.zeros((count, width), np.float32)
    counts = np.zeros(count, np.int64)
    batches.sum_groups(values, numbers, sums, counts)

    _, first = np.unique(numbers, return_index=True)
    distinct_ids = ids[first]
    sums[:, dim:] = values[first, dim:]

    return distinct_ids, sums, counts


def _numbered(ids: I64) -> tuple[int, I32]:
    """How many ids are distinct, and the number of each in the order of first appearance."""
    found = np.empty(ids.size, np.int64)
    numbers = np.empty(ids.size, np.int32)
    count = distinct.distinct(distinct.SECRET, ids, found, numbers)

    return count, numbers
