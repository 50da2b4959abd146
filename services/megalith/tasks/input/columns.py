"""What the columns of a data set are for, and how their values become numbers.

    label   0..1, or a comparison such as rating>=4
    ids     integers or text, one for each example or a list; `mg.hash_ids` makes ids of them
    dense   numbers
    time    the Unix time of an example

A value that is missing has no id, and so adds nothing; a dense one counts as the mean of its
column. Both are counted. A label or a time that is missing is an error.
"""

import re
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megalith.client import Ragged, hash_ids
from megalith.errors import BadData, InvalidSetting
from megalith.runtime.counting import counted
from megalith.tasks.input.splits import splits_of

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_UNITS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# The begin of 1990: integers of before are usually of another unit, or no times.
_EARLIEST_USUAL_S = 631_152_000
# Beyond the year 2286: a number of milliseconds was taken for one of seconds.
_LATEST_S = 10_000_000_000
_GREATEST = float(np.finfo(np.float32).max)
# From there on floats lack whole numbers: two ids may have become one before they were written.
_ROUNDED_FROM = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}
_LONGEST_GROUP = 100  # characters: the figures of an evaluation have the name of each group
_COMPARISON = re.compile(r"(.+?)(>=|>|==|<=|<)(.+)")
_WITHOUT_NUMBER = re.compile(r".+?(>=|>|==|<=|<)\s*")
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
        incomplete = _WITHOUT_NUMBER.fullmatch(text)
        if incomplete is not None:
            raise InvalidSetting(
                f"--label={text}: a number is missing after {incomplete[1]}; a comparison is one "
                "such as 'rating>=4'"
            )

        match = _COMPARISON.fullmatch(text)
        if match is None:
            return cls(text)

        column, operator, number = match.groups()
        if column.endswith("="):
            raise InvalidSetting(f"--label={text}: a comparison is one of {', '.join(_COMPARE)}")

        try:
            return cls(column.strip(), operator, float(number))
        except ValueError:
            raise InvalidSetting(f"--label={text}: {number!r} is not a number") from None

    def values(self, column: pa.ChunkedArray, where: str) -> F32:
        numbers = as_numbers(column, where, "; a label is a number, or --label compares one")
        missing = np.isnan(numbers)
        if missing.any():
            row = _first(missing)
            rows = counted(int(missing.sum()), "row")
            raise BadData(
                f"{where}: the label is missing in {rows}, "
                f"the first is row {row}; leave such rows out of the file"
            )

        if self.operator:
            compare = _COMPARE[self.operator]
            is_met = compare(numbers, self.number)
            return is_met.astype(np.float32)

        is_below = numbers < 0.0
        is_above = numbers > 1.0
        wrong = is_below | is_above
        if wrong.any():
            row = _first(wrong)
            number = numbers[row]
            labels = counted(int(wrong.sum()), "label is", "labels are")
            raise BadData(
                f"{where}: {labels} outside 0..1, the first is {number:g} in "
                f"row {row}; a comparison makes labels of them, such as --label "
                f"'{self._example(numbers)}'"
            )

        return numbers.astype(np.float32)

    def _example(self, numbers: NDArray[np.float64]) -> str:
        """A comparison that divides these numbers, which are not all labels, near their middle."""
        middle = float(np.median(numbers))
        operator = ">=" if middle > numbers.min() else ">"
        return f"{self.column}{operator}{middle:g}"


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

        lists = _usual(column.combine_chunks())
        if pa.types.is_null(lists.type):
            lists = lists.cast(pa.list_(pa.int64()))

        if _is_text(lists.type):
            lists = _split(lists, self.separator)

        if pa.types.is_fixed_size_list(lists.type):
            any_size = pa.list_(lists.type.value_type)
            lists = lists.cast(any_size)

        if not _is_list(lists.type):
            raise BadData(
                f"{where}: {lists.type} is neither a list nor text; use --features for it"
            )

        is_missing = lists.is_null().to_numpy(zero_copy_only=False)
        stated_lengths = pc.fill_null(pc.list_value_length(lists), 0)
        lengths = stated_lengths.to_numpy().astype(np.int64)
        splits = splits_of(lengths)

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
        """NaN where a value is missing, or infinite, or will be as float32."""
        numbers = as_numbers(column, where, "; use --features for it, which makes ids of values")
        changed = self.changed(numbers)
        is_infinite = np.abs(changed) > _GREATEST
        return np.where(is_infinite, np.nan, changed)

    def changed(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """What the model takes of these numbers."""
        if not self.is_log:
            return numbers

        signs = np.sign(numbers)
        sizes = np.abs(numbers)
        logarithms: NDArray[Any] = signs * np.log1p(sizes)
        return logarithms


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """A column of times: timestamps, dates, or integers of a unit since 1970."""

    column: str
    unit: str = "s"

    def values(self, column: pa.ChunkedArray, where: str) -> I64:
        """Unix seconds."""
        self._check_type(column.type, where)
        if column.null_count:
            missing = column.is_null().to_numpy()
            row = _first(missing)
            rows = counted(column.null_count, "row")
            raise BadData(f"{where}: the time is missing in {rows}, the first is row {row}")

        seconds = self._seconds(column, where)
        oldest = int(seconds.min(initial=0))
        newest = int(seconds.max(initial=0))
        if oldest < 0:
            row = int(seconds.argmin())
            raise BadData(f"{where}: the time of row {row} is {-oldest} seconds before 1970")

        if newest > _LATEST_S:
            raise BadData(
                f"{where}: {newest} seconds since 1970 would be after the year 2286; "
                f"say the unit, for example --time {self.column}:ms"
            )

        return seconds

    def doubt(self, seconds: I64, kind: pa.DataType) -> str:
        """A sentence if these times of a column of integers lie before 1990, or nothing.

        Numbers of another unit and numbers that are no times are small: an age in seconds is one.
        """
        newest_s = int(seconds.max(initial=0))
        if not seconds.size or not pa.types.is_integer(kind) or newest_s >= _EARLIEST_USUAL_S:
            return ""

        oldest = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(int(seconds.min())))
        newest = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest_s))
        return (
            f"--time {self.column}: its first times lie before 1990, from {oldest} to {newest}, "
            f"because its integers are taken for {_UNIT_NAMES[self.unit]} since 1970; say another "
            f"unit, for example --time {self.column}:ms, or name a column that has times"
        )

    def _check_type(self, kind: pa.DataType, where: str) -> None:
        is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        if is_time or pa.types.is_integer(kind) or pa.types.is_null(kind):
            return

        raise BadData(
            f"{where}: {kind} is no time; expected a timestamp, a date or an integer: write the "
            "column as one of these, or name another column with --time"
        )

    def _seconds(self, column: pa.ChunkedArray, where: str) -> I64:
        kind = column.type
        unit = self.unit
        if pa.types.is_timestamp(kind):
            unit = kind.unit
        elif pa.types.is_date(kind):
            unit = "ms"
            column = column.cast(pa.date64())

        try:
            integers = column.cast(pa.int64())
            counts: I64 = np.asarray(integers)
        except pa.ArrowInvalid as error:
            raise BadData(f"{where}: these are no times since 1970: {error}") from error

        return counts // _UNITS_PER_S[unit]


def as_numbers(column: pa.ChunkedArray, where: str, way_out: str) -> NDArray[np.float64]:
    """float64, NaN where there is no value; `way_out` ends the message if it has no numbers."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif not _is_number(kind) and not pa.types.is_null(kind):
        raise BadData(f"{where}: {kind} is no number{way_out}")

    numbers = column.cast(pa.float64(), safe=False)
    filled = pc.fill_null(numbers, float("nan"))
    found: NDArray[np.float64] = filled.to_numpy()
    return found


def as_groups(column: pa.ChunkedArray, where: str) -> NDArray[np.object_]:
    """Values as text that is fit for a name; "missing" where there is none.

    Of long text the beginning counts. Equal values are one object, so that a block of them costs a
    pointer for each row, and not as much as the longest of them.
    """
    try:
        texts = column.cast(pa.large_string())
        text = pc.fill_null(texts, "missing")
        encoded = text.combine_chunks().dictionary_encode()
    except pa.ArrowException as error:
        raise BadData(f"{where}: {column.type} cannot divide an evaluation") from error

    different = []
    for value in _as_python(encoded.dictionary, where):
        is_long = len(value) > _LONGEST_GROUP
        different.append(f"{value[:_LONGEST_GROUP]}..." if is_long else value)

    names = np.array(different, np.object_)
    groups: NDArray[np.object_] = names[encoded.indices.to_numpy()]
    return groups


def _single_ids(column: pa.ChunkedArray, where: str) -> tuple[Ragged, I64]:
    """One id for each value, none where it is missing.

    Each different value is hashed once: a block repeats its values many times.
    """
    values = _usual(column.combine_chunks())
    whole = _with_whole_numbers(values, where)
    kind = whole.type
    is_bytes = _is_text(kind) or _is_bytes(kind)
    if not is_bytes and not pa.types.is_integer(kind):
        way_out = "; use --lists for it" if _is_list(kind) else ""
        raise BadData(f"{where}: no ids are made of {kind}, but of integers and text{way_out}")

    encoded = whole.dictionary_encode()
    hashed = _hashed(encoded.dictionary, where)

    codes = encoded.indices
    codes_found = pc.drop_null(codes).to_numpy()
    ids = hashed[codes_found]

    is_missing = codes.is_null().to_numpy(zero_copy_only=False)
    splits = splits_of(~is_missing)
    return Ragged(ids, splits), is_missing.astype(np.int64)


def _usual(values: pa.Array) -> pa.Array:
    """Dictionaries as their values, and views of text, which Arrow orders not, as text."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _usual(values.dictionary_decode())

    if pa.types.is_string_view(kind):
        return values.cast(pa.large_string())

    if pa.types.is_binary_view(kind):
        return values.cast(pa.large_binary())

    return values


def _hashed(values: pa.Array, where: str) -> I64:
    """The ids of integers, text or bytes."""
    if not len(values):
        return np.empty(0, np.int64)

    if pa.types.is_integer(values.type):
        numbers = values.to_numpy()
        return hash_ids(numbers)

    texts = _as_python(values, where)
    return hash_ids(texts)


def _as_python(values: pa.Array, where: str) -> list[Any]:
    """Text or bytes. BadData for text that is none: some writers of Parquet check nothing."""
    try:
        return list(values.to_pylist())
    except UnicodeDecodeError as error:
        start = error.object[:24]
        raise BadData(
            f"{where}: a text is not UTF-8, it begins with {start!r}; write the column as UTF-8, "
            "or as binary"
        ) from error


def _with_whole_numbers(values: pa.Array, where: str) -> pa.Array:
    """Booleans and dates as integers; and floats and decimals, if they are whole.

    Programs write floats for integers with gaps, and decimals for all integers of some databases.
    """
    kind = values.type
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint8())

    if pa.types.is_date32(kind):
        return values.cast(pa.int32())

    if pa.types.is_null(kind):
        return values.cast(pa.int64())

    numbers = values
    if pa.types.is_floating(kind):
        is_missing = pc.is_nan(values)
        numbers = pc.if_else(is_missing, None, values)
        _check_exact(numbers, where)
    elif not pa.types.is_decimal(kind):
        return values

    try:
        return numbers.cast(pa.int64(), safe=True)
    except pa.ArrowInvalid as error:
        raise BadData(
            f"{where}: ids are made of integers and text, and not all of its numbers are whole "
            f"({error}); put the column into --dense"
        ) from error


def _check_exact(numbers: pa.Array, where: str) -> None:
    """BadData if floats are so large that ids may have been rounded."""
    greatest = pc.max(pc.abs(numbers.cast(pa.float64()))).as_py()
    kind = numbers.type
    limit = _ROUNDED_FROM[kind]
    if greatest is not None and limit <= greatest < np.inf:
        raise BadData(
            f"{where}: it has the number {greatest:.0f}, and {kind} rounds whole numbers from "
            f"{limit} on, so that different ids may have become one; write the column as int64 "
            "(which may have missing values) or as text; of CSV and TSV --text reads it as text"
        )


def _split(texts: pa.Array, separator: str) -> pa.Array:
    """The values between separators. Where there is nothing between two, there is no value."""
    parts = pc.split_pattern(texts, separator)
    stated_lengths = pc.fill_null(pc.list_value_length(parts), 0)
    splits = splits_of(stated_lengths.to_numpy())

    flat = parts.flatten()
    is_value = pc.not_equal(flat, "").to_numpy(zero_copy_only=False)
    values = flat.filter(is_value)

    num_kept_before = splits_of(is_value)
    kept_splits = num_kept_before[splits]
    return pa.LargeListArray.from_arrays(kept_splits, values, mask=texts.is_null())


def _is_number(kind: Any) -> bool:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return True

    return bool(pa.types.is_decimal(kind))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    if pa.types.is_fixed_size_binary(kind):
        return True

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _first(flags: NDArray[np.bool_]) -> int:
    positions = np.flatnonzero(flags)
    return int(positions[0])
