"""What the columns of a data set are for, and how their values become numbers.

    label   0..1, or a comparison such as rating>=4
    ids     integers or text, one for each example or a list; `mg.hash_ids` makes ids of them
    dense   numbers
    time    the Unix time of an example

A value that is missing has no id, and so adds nothing; a dense one counts as the mean of its
column. Both are counted. A label or a time that is missing is an error.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megalith.client import Ragged, hash_ids
from megalith.errors import BadData, InvalidSetting

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_UNITS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# Beyond the year 2286: a number of milliseconds was taken for one of seconds.
_LATEST_S = 10_000_000_000
_COMPARISON = re.compile(r"(.+?)(>=|>|==|<=|<)(.+)")
_COMPARE = {
    ">=": np.greater_equal,
    ">": np.greater,
    "==": np.equal,
    "<=": np.less_equal,
    "<": np.less,
}


@dataclass(frozen=True, slots=True)
class Label:
    """The column to predict: 0..1, or whether it compares with a number."""

    column: str
    operator: str = ""
    number: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Label":
        """`click`, or a comparison such as `rating>=4`."""
        match = _COMPARISON.fullmatch(text)
        if match is None:
            return cls(text)

        column, operator, number = match.groups()
        try:
            return cls(column.strip(), operator, float(number))
        except ValueError:
            raise InvalidSetting(f"--label={text}: {number!r} is not a number") from None

    def values(self, column: pa.ChunkedArray, where: str) -> F32:
        numbers = as_numbers(column, where)
        missing = np.isnan(numbers)
        if missing.any():
            raise BadData(
                f"{where}: the label is missing in {missing.sum()} rows, "
                f"the first is row {_first(missing)}"
            )

        if self.operator:
            return _COMPARE[self.operator](numbers, self.number).astype(np.float32)

        wrong = (numbers < 0.0) | (numbers > 1.0)
        if wrong.any():
            row = _first(wrong)
            raise BadData(
                f"{where}: {wrong.sum()} labels are outside 0..1, the first is {numbers[row]:g} in "
                f"row {row}; a comparison makes labels of them, such as --label "
                f"'{self.column}>={numbers[row]:g}'"
            )

        return numbers.astype(np.float32)


@dataclass(frozen=True, slots=True)
class IdColumn:
    """A column whose values have rows.

    `table` names the column whose rows they are: its own, or another one's. The text of a list is
    split at `separator`.
    """

    column: str
    table: str
    is_list: bool = False
    separator: str = "|"

    def ids(self, column: pa.ChunkedArray, where: str) -> tuple[Ragged, I64]:
        """(the ids of each example, how many values it lacks).

        A list that is empty lacks nothing.
        """
        if not self.is_list:
            return _single_ids(column, where)

        lists = column.combine_chunks()
        if _is_text(lists.type):
            lists = pc.split_pattern(lists, self.separator)
        if pa.types.is_fixed_size_list(lists.type):
            lists = lists.cast(pa.list_(lists.type.value_type))
        if not _is_list(lists.type):
            raise BadData(
                f"{where}: {lists.type} is neither a list nor text; use --features for it"
            )

        is_missing = lists.is_null().to_numpy(zero_copy_only=False)
        stated_lengths = pc.fill_null(pc.list_value_length(lists), 0)
        lengths = stated_lengths.to_numpy().astype(np.int64)
        splits = np.concatenate([[0], np.cumsum(lengths)])

        flat = pa.chunked_array([lists.flatten()])
        values, _ = _single_ids(flat, where)

        # A value that is missing inside a list has no id either.
        kept = values.row_splits[splits]
        num_missing = is_missing + lengths - np.diff(kept)
        return Ragged(values.values, kept), num_missing


@dataclass(frozen=True, slots=True)
class DenseColumn:
    """A column of numbers. With `is_log` of sign(x) log(1 + |x|), for those of many sizes."""

    column: str
    is_log: bool = False

    def values(self, column: pa.ChunkedArray, where: str) -> NDArray[np.float64]:
        """NaN where a value is missing or infinite."""
        numbers = as_numbers(column, where)
        numbers = np.where(np.isinf(numbers), np.nan, numbers)
        if self.is_log:
            numbers = np.sign(numbers) * np.log1p(np.abs(numbers))

        return numbers


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """A column of times: timestamps, dates, or integers of a unit since 1970."""

    column: str
    unit: str = "s"

    def values(self, column: pa.ChunkedArray, where: str) -> I64:
        """Unix seconds."""
        if column.null_count:
            missing = column.is_null().to_numpy()
            raise BadData(
                f"{where}: the time is missing in {column.null_count} rows, "
                f"the first is row {_first(missing)}"
            )

        if pa.types.is_timestamp(column.type):
            units = _UNITS_PER_S[column.type.unit]
            return np.asarray(column.cast(pa.int64())) // units
        if pa.types.is_date(column.type):
            return np.asarray(column.cast(pa.timestamp("s")).cast(pa.int64()))
        if not pa.types.is_integer(column.type):
            raise BadData(
                f"{where}: {column.type} is no time; expected a timestamp, a date or an integer"
            )

        seconds: I64 = np.asarray(column.cast(pa.int64())) // _UNITS_PER_S[self.unit]
        newest = int(seconds.max(initial=0))
        if newest > _LATEST_S:
            raise BadData(
                f"{where}: {newest} seconds since 1970 would be after the year 2286; "
                f"say the unit, for example --time {self.column}:ms"
            )

        return seconds


def as_numbers(column: pa.ChunkedArray, where: str) -> NDArray[np.float64]:
    """float64, NaN where there is no value."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise BadData(f"{where}: {kind} is no number")

    numbers = column.cast(pa.float64(), safe=False)
    filled: NDArray[np.float64] = pc.fill_null(numbers, float("nan")).to_numpy()
    return filled


def as_text(column: pa.ChunkedArray, where: str) -> NDArray[np.str_]:
    """Values as they are written in a name; "missing" where there is none."""
    try:
        text = pc.fill_null(column.cast(pa.string()), "missing")
    except pa.ArrowException as error:
        raise BadData(f"{where}: {column.type} cannot divide an evaluation: {error}") from error

    return np.array(text.to_pylist(), np.str_)


def _single_ids(column: pa.ChunkedArray, where: str) -> tuple[Ragged, I64]:
    """One id for each value, none where it is missing.

    Each different value is hashed once: a block repeats its values many times.
    """
    values = column.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()

    whole = _with_whole_numbers(values, where)
    kind = whole.type
    if not (_is_text(kind) or _is_bytes(kind) or pa.types.is_integer(kind)):
        way_out = "; use --lists for it" if _is_list(kind) else ""
        raise BadData(f"{where}: no ids are made of {kind}, but of integers and text{way_out}")

    encoded = whole.dictionary_encode()
    hashed = _hashed(encoded.dictionary)

    codes = encoded.indices
    codes_found = pc.drop_null(codes).to_numpy()
    ids = hashed[codes_found]

    is_missing = codes.is_null().to_numpy(zero_copy_only=False)
    splits = np.concatenate([[0], np.cumsum(~is_missing)])
    return Ragged(ids, splits), is_missing.astype(np.int64)


def _hashed(values: pa.Array) -> I64:
    """The ids of integers, text or bytes."""
    if not len(values):
        return np.empty(0, np.int64)
    if not pa.types.is_integer(values.type):
        return hash_ids(values.to_pylist())

    return hash_ids(values.to_numpy())


def _with_whole_numbers(values: pa.Array, where: str) -> pa.Array:
    """Booleans and dates as integers; and floats, which programs write for integers with gaps."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint8())
    if pa.types.is_date32(kind):
        return values.cast(pa.int32())
    if pa.types.is_null(kind):
        return values.cast(pa.int64())
    if not pa.types.is_floating(kind):
        return values

    numbers = pc.if_else(pc.is_nan(values), None, values)
    try:
        return numbers.cast(pa.int64(), safe=True)
    except pa.ArrowInvalid as error:
        raise BadData(
            f"{where}: ids are made of integers and text, and not all of its numbers are whole "
            f"({error}); put the column into --dense"
        ) from error


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _first(flags: NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(flags)[0])
