"""Fields of messages in protobuf's wire format."""

import numpy as np

from megalith.kernels.crc32c import Int
from megalith.kernels.dtypes import U8
from megalith.kernels.jit import kernel

# Wire types
VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5


@kernel
def varint(data: U8, at: Int, end: Int) -> tuple[np.uint64, Int]:
    """A number and where it ends; -1 if it does not end in time."""
    value = np.uint64(0)
    shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        if shift < 64:
            value |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            return value, at
        shift += 7
    return value, -1


@kernel
def after_field(data: U8, at: Int, end: Int, wire: Int) -> Int:
    """Where a field of this wire type ends; -1 if not before `end`."""
    if wire == VARINT:
        _, at = varint(data, at, end)
        return at

    if wire == FIXED64:
        at += 8
    elif wire == FIXED32:
        at += 4
    elif wire == BYTES:
        length, at = varint(data, at, end)
        if at < 0 or length > np.uint64(end - at):
            return -1
        at += np.int64(length)
    else:
        return -1

    return at if at <= end else -1
