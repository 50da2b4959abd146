"""The values of tf.train.Example messages, a feature at a time.

    Example      features 1
    Features     feature 1: a map, so each entry is a message of key 1 and Feature 2
    Feature      one of bytes_list 1, float_list 2, int64_list 3
    each list    value 1, repeated; numbers are packed, or one by one

Unknown fields are skipped. Of a key that comes twice the last one counts, as in protobuf.
"""

import numpy as np
from numpy.typing import NDArray

from megalith.kernels.crc32c import Int
from megalith.kernels.dtypes import I64, U8
from megalith.kernels.jit import kernel
from megalith.kernels.protobuf import BYTES, after_field, varint

I64x2 = NDArray[np.int64]
U8x2 = NDArray[np.uint8]

# Kinds of a feature: the field numbers of its lists
NO_VALUES = 0
BYTES_LIST = 1
FLOAT_LIST = 2
INT64_LIST = 3

MALFORMED = -1
_KEY = 1
_FEATURE = 2
_FIRST_BYTES = (1 << 3) | BYTES  # the tag of field 1 that holds bytes or a message


@kernel
def _inside(data: U8, at: Int, end: Int) -> tuple[Int, Int]:
    """Where the content of a field of bytes begins and ends; -1 if not before `end`."""
    length, begin = varint(data, at, end)
    if begin < 0 or length > np.uint64(end - begin):
        return -1, -1
    return begin, begin + np.int64(length)


@kernel
def _is_name(data: U8, begin: Int, end: Int, names: U8, first: Int, last: Int) -> bool:
    if end - begin != last - first:
        return False
    # From the end: names such as feature_1 and feature_2 differ there.
    offset = end - begin - 1
    while offset >= 0 and data[begin + offset] == names[first + offset]:
        offset -= 1
    return bool(offset < 0)


@kernel
def _feature_of(data: U8, key: Int, key_end: Int, names: U8, name_ends: I64, expected: Int) -> Int:
    """The number of the feature of that name; -1 if it is not wanted.

    Programs write features in the same order again and again, so `expected` is tried first.
    """
    for turn in range(name_ends.size):
        number = (expected + turn) % name_ends.size
        first = name_ends[number - 1] if number else 0
        if _is_name(data, key, key_end, names, first, name_ends[number]):
            return number
    return -1


@kernel
def _entry(
    data: U8, at: Int, end: Int, names: U8, name_ends: I64, expected: Int, found: I64
) -> Int:
    """Read one entry of the map: found[:] = feature, kind, begin and end of its list.

    Returns 0, or MALFORMED. The feature is -1 if it is not wanted.
    """
    key = at
    key_end = at
    value = -1
    value_end = -1
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return MALFORMED
        number = np.int64(tag >> np.uint64(3))
        wire = np.int64(tag & np.uint64(7))
        after = after_field(data, at, end, wire)
        if after < 0:
            return MALFORMED
        if wire == BYTES and number == _KEY:
            key, key_end = _inside(data, at, end)
        elif wire == BYTES and number == _FEATURE:
            value, value_end = _inside(data, at, end)
        at = after

    found[0] = _feature_of(data, key, key_end, names, name_ends, expected)
    found[1] = NO_VALUES
    at = value
    while value >= 0 and at < value_end:
        tag, at = varint(data, at, value_end)
        if at < 0:
            return MALFORMED
        number = np.int64(tag >> np.uint64(3))
        wire = np.int64(tag & np.uint64(7))
        after = after_field(data, at, value_end, wire)
        if after < 0:
            return MALFORMED
        if wire == BYTES and BYTES_LIST <= number <= INT64_LIST:
            begin, list_end = _inside(data, at, value_end)
            found[1] = number
            found[2] = begin
            found[3] = list_end
        at = after
    return 0


@kernel
def locate(
    data: U8,
    begins: I64,
    ends: I64,
    names: U8,
    name_ends: I64,
    kinds: U8x2,
    starts: I64x2,
    stops: I64x2,
) -> Int:
    """Where the list of each wanted feature is in each example, and of which kind.

    `names` are all wanted names, one behind the other. kinds, starts and stops are [feature,
    example], and kinds begin as NO_VALUES. Returns the first malformed example, or -1.
    """
    found = np.zeros(4, np.int64)
    for example in range(begins.size):
        at = begins[example]
        end = ends[example]
        expected = 0
        while at < end:
            tag, at = varint(data, at, end)
            if at < 0:
                return example
            if tag != np.uint64(_FIRST_BYTES):
                at = after_field(data, at, end, np.int64(tag & np.uint64(7)))
                if at < 0:
                    return example
                continue

            at, features_end = _inside(data, at, end)
            if at < 0:
                return example
            while at < features_end:
                tag, at = varint(data, at, features_end)
                if at < 0:
                    return example
                if tag != np.uint64(_FIRST_BYTES):
                    at = after_field(data, at, features_end, np.int64(tag & np.uint64(7)))
                    if at < 0:
                        return example
                    continue

                begin, after = _inside(data, at, features_end)
                if begin < 0:
                    return example
                if _entry(data, begin, after, names, name_ends, expected, found) == MALFORMED:
                    return example
                if found[0] >= 0:
                    feature = found[0]
                    kinds[feature, example] = found[1]
                    starts[feature, example] = found[2]
                    stops[feature, example] = found[3]
                    expected = feature + 1
                at = after
    return -1


@kernel
def count_values(data: U8, kind: Int, starts: I64, stops: I64, counts: I64) -> Int:
    """How many values each list has; returns the first malformed one, or -1."""
    for example in range(starts.size):
        counts[example] = 0
        at = starts[example]
        end = stops[example]
        while at < end:
            tag, at = varint(data, at, end)
            if at < 0:
                return example
            wire = np.int64(tag & np.uint64(7))
            after = after_field(data, at, end, wire)
            if after < 0:
                return example
            if np.int64(tag >> np.uint64(3)) == 1:
                if wire != BYTES or kind == BYTES_LIST:
                    counts[example] += 1
                else:
                    begin, last = _inside(data, at, end)
                    if kind == FLOAT_LIST:
                        counts[example] += (last - begin) // 4
                    else:
                        for place in range(begin, last):
                            counts[example] += data[place] < 0x80
            at = after
    return -1


@kernel
def fill_int64(data: U8, starts: I64, stops: I64, out: I64) -> None:
    """The numbers of all lists, one behind the other; the lists are well-formed."""
    number = 0
    for example in range(starts.size):
        at = starts[example]
        end = stops[example]
        while at < end:
            tag, at = varint(data, at, end)
            wire = np.int64(tag & np.uint64(7))
            after = after_field(data, at, end, wire)
            if np.int64(tag >> np.uint64(3)) == 1:
                last = after
                if wire == BYTES:
                    at, last = _inside(data, at, end)
                while at < last and number < out.size:
                    value, at = varint(data, at, last)
                    if at < 0:
                        break
                    out[number] = np.int64(value)
                    number += 1
            at = after


@kernel
def fill_float(data: U8, starts: I64, stops: I64, bits: NDArray[np.uint32]) -> None:
    """The floats of all lists, as their bits; the lists are well-formed."""
    number = 0
    for example in range(starts.size):
        at = starts[example]
        end = stops[example]
        while at < end:
            tag, at = varint(data, at, end)
            wire = np.int64(tag & np.uint64(7))
            after = after_field(data, at, end, wire)
            if np.int64(tag >> np.uint64(3)) == 1:
                last = after
                if wire == BYTES:
                    at, last = _inside(data, at, end)
                while at + 4 <= last and number < bits.size:
                    bits[number] = (
                        np.uint32(data[at])
                        | np.uint32(data[at + 1]) << np.uint32(8)
                        | np.uint32(data[at + 2]) << np.uint32(16)
                        | np.uint32(data[at + 3]) << np.uint32(24)
                    )
                    number += 1
                    at += 4
            at = after


@kernel
def locate_bytes(data: U8, starts: I64, stops: I64, begins: I64, ends: I64) -> None:
    """Where each text of all lists begins and ends; the lists are well-formed."""
    number = 0
    for example in range(starts.size):
        at = starts[example]
        end = stops[example]
        while at < end:
            tag, at = varint(data, at, end)
            after = after_field(data, at, end, np.int64(tag & np.uint64(7)))
            if np.int64(tag >> np.uint64(3)) == 1 and number < begins.size:
                begin, last = _inside(data, at, end)
                begins[number] = begin
                ends[number] = last
                number += 1
            at = after


@kernel
def copy_bytes(data: U8, begins: I64, ends: I64, out: U8) -> None:
    """All texts, one behind the other."""
    to = 0
    for number in range(begins.size):
        for at in range(begins[number], ends[number]):
            out[to] = data[at]
            to += 1


@kernel
def block_ends(data: U8, size: Int, ends: I64, rows: I64) -> tuple[Int, Int]:
    """Divide a TFRecord file into blocks of whole records, each of about `size` bytes.

    Lengths are trusted as far as they stay inside the file. Returns how many blocks there are, and
    where the last whole record ends.
    """
    count = 0
    at: Int = 0
    block_begin: Int = 0
    num_rows = 0
    while at + 12 <= data.size:
        length = np.int64(0)
        for number in range(8):
            length |= np.int64(data[at + number]) << np.int64(8 * number)
        if length < 0 or length > data.size - at - 16:
            break

        at += 16 + length
        num_rows += 1
        if at - block_begin >= size and count + 1 < ends.size:
            ends[count] = at
            rows[count] = num_rows
            count += 1
            block_begin = at
            num_rows = 0

    if num_rows:
        ends[count] = at
        rows[count] = num_rows
        count += 1
    return count, at
