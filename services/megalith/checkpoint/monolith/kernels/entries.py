"""Rows out of the messages of Monolith's table files: EntryDump, in protobuf's wire format.

    EntryDump            id 1 sfixed64, num 2 repeated float, opt 3, last_update_ts_sec 4 int64
    opt                  dump 1: one message for each segment, as one case of a oneof
    that case            repeated or single floats, or an int64, by field number

Repeated floats come one by one, as proto2 writes them, or packed. Unknown fields are skipped.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.kernels.crc32c import Int
from megalith.kernels.dtypes import F32, I64, U8
from megalith.kernels.jit import kernel
from megalith.kernels.protobuf import BYTES, FIXED32, FIXED64, VARINT, after_field, varint

I64x2 = NDArray[np.int64]
F32x2 = NDArray[np.float32]

# What becomes of an entry
GOOD = 0
MALFORMED = 1  # not a message of this kind
NO_ID = 2
OTHER_WIDTH = 3  # another number of values than the table's rows have
OTHER_OPTIMIZER = 4  # the state of another optimizer than the table's
NO_STATE = 5  # its state is missing or too short: the row is good, and its state begins anew

MOST_FIELDS = 8  # field numbers of a case that are looked at are below this

_STEP_SHIFT = 24  # a step is two whole numbers in float32, as the engine keeps it
_STEP_MASK = (1 << 24) - 1
_STEP_LIMIT = 1 << 48


@kernel
def _float(data: U8, at: Int, bits: NDArray[np.uint32]) -> Any:
    bits[0] = np.uint32(
        np.uint32(data[at])
        | np.uint32(data[at + 1]) << np.uint32(8)
        | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )
    return bits.view(np.float32)[0]


@kernel
def _fixed64(data: U8, at: Int) -> np.int64:
    value = np.uint64(0)
    for number in range(8):
        value |= np.uint64(data[at + number]) << np.uint64(8 * number)
    return np.int64(value)


@kernel
def _state(
    data: U8,
    begin: Int,
    end: Int,
    starts: I64,
    widths: I64,
    steps: I64,
    row: F32,
    bits: NDArray[np.uint32],
    filled: I64,
) -> int:
    """Put one segment's state into `row`; by field number, where it goes and how wide it is."""
    filled[:] = 0
    at: Int = begin
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return MALFORMED
        field = np.int64(tag >> np.uint64(3))
        wire = np.int64(tag & np.uint64(7))
        after = after_field(data, at, end, wire)
        if after < 0:
            return MALFORMED

        is_known = 0 < field < MOST_FIELDS and widths[field] > 0
        if is_known and steps[field]:
            if wire != VARINT:
                return MALFORMED
            value, _ = varint(data, at, end)
            step = np.int64(value)
            if step < -1 or step >= _STEP_LIMIT:
                return NO_STATE
            row[starts[field]] = step >> _STEP_SHIFT
            row[starts[field] + 1] = step & _STEP_MASK
            filled[field] = widths[field]
        elif is_known:
            first = at
            if wire == BYTES:
                _, first = varint(data, at, end)
                if (after - first) % 4:
                    return MALFORMED
            elif wire != FIXED32:
                return MALFORMED
            for place in range(first, after, 4):
                if filled[field] == widths[field]:
                    return OTHER_WIDTH
                row[starts[field] + filled[field]] = _float(data, place, bits)
                filled[field] += 1

        at = after

    for number in range(MOST_FIELDS):
        if filled[number] < widths[number]:
            return NO_STATE
    return GOOD


@kernel
def _states(
    data: U8,
    begin: Int,
    end: Int,
    cases: I64,
    starts: I64x2,
    widths: I64x2,
    steps: I64x2,
    row: F32,
    bits: NDArray[np.uint32],
    filled: I64,
) -> int:
    """Put the states of all segments into `row`; those without a case have none in the file."""
    segment = 0
    at: Int = begin
    while at < end:
        tag, at = varint(data, at, end)
        if at < 0:
            return MALFORMED
        after = after_field(data, at, end, np.int64(tag & np.uint64(7)))
        if after < 0:
            return MALFORMED
        if tag == np.uint64(1 << 3 | BYTES):
            while segment < cases.size and cases[segment] == 0:
                segment += 1
            if segment == cases.size:
                return OTHER_OPTIMIZER

            _, inner = varint(data, at, end)
            if inner == after:
                return OTHER_OPTIMIZER  # no case is set
            inner_tag, inner = varint(data, inner, after)
            if inner < 0:
                return MALFORMED
            if inner_tag != np.uint64(cases[segment] << 3 | BYTES):
                return OTHER_OPTIMIZER
            inner_after = after_field(data, inner, after, BYTES)
            if inner_after != after:
                return MALFORMED

            _, inner = varint(data, inner, after)
            status = _state(
                data,
                inner,
                after,
                starts[segment],
                widths[segment],
                steps[segment],
                row,
                bits,
                filled,
            )
            if status != GOOD:
                return status
            segment += 1
        at = after

    while segment < cases.size and not widths[segment].any():
        segment += 1
    return GOOD if segment == cases.size else NO_STATE


@kernel
def parse(
    data: U8,
    begins: I64,
    ends: I64,
    dim: Int,
    template: F32,
    cases: I64,
    starts: I64x2,
    widths: I64x2,
    steps: I64x2,
    ids: I64,
    rows: F32x2,
    times: I64,
    statuses: U8,
) -> None:
    """Parse the entries data[begins[i]:ends[i]].

    `cases` is the number of each segment's case, 0 for one without state in the file. `starts`,
    `widths` and `steps` say by segment and field number where in a row a field goes, how many
    floats it has there, and whether it is a step. A row whose state is not in the file has that of
    `template`.
    """
    bits = np.zeros(1, np.uint32)
    filled = np.zeros(MOST_FIELDS, np.int64)
    for number in range(begins.size):
        row = rows[number]
        row[:] = template
        times[number] = 0
        status = GOOD
        has_id = False
        count = 0
        has_state = False
        state = NO_STATE
        at = begins[number]
        end = ends[number]
        while at < end:
            tag, at = varint(data, at, end)
            if at < 0:
                status = MALFORMED
                break
            field = np.int64(tag >> np.uint64(3))
            wire = np.int64(tag & np.uint64(7))
            after = after_field(data, at, end, wire)
            if after < 0 or field == 0:
                status = MALFORMED
                break

            if field == 1 and wire == FIXED64:
                ids[number] = _fixed64(data, at)
                has_id = True
            elif field == 2 and wire in (FIXED32, BYTES):
                first = at
                if wire == BYTES:
                    _, first = varint(data, at, end)
                    if (after - first) % 4:
                        status = MALFORMED
                        break
                for place in range(first, after, 4):
                    if count < dim:
                        row[count] = _float(data, place, bits)
                    count += 1
            elif field == 3 and wire == BYTES:
                _, first = varint(data, at, end)
                has_state = True
                state = _states(data, first, after, cases, starts, widths, steps, row, bits, filled)
            elif field == 4 and wire == VARINT:
                value, _ = varint(data, at, end)
                times[number] = np.int64(value)
            elif 1 <= field <= 4:
                status = MALFORMED
                break
            at = after

        if status == GOOD and not has_id:
            status = NO_ID
        if status == GOOD and count != dim:
            status = OTHER_WIDTH
        if status == GOOD and not has_state:
            state = NO_STATE
            if not widths.any():
                state = GOOD  # there is nothing to have
        if status == GOOD:
            status = state
        if status == NO_STATE:
            row[dim:] = template[dim:]
        statuses[number] = status
