"""The records of a TFRecord file.

length      8 bytes, little-endian
checksum    4 bytes, of the length
data        `length` bytes
checksum    4 bytes, of the data
"""

import numpy as np

from megalith.kernels.crc32c import Int, U32x2, masked_crc32c
from megalith.kernels.dtypes import I64, U8
from megalith.kernels.jit import kernel

HEADER = 12
FOOTER = 4

WHOLE = 0  # as many records as are there, or as were asked for
BAD_LENGTH = 1  # the checksum of a length is wrong
BAD_DATA = 2  # the checksum of the data is wrong


@kernel
def _word(data: U8, at: Int) -> np.uint32:
    return np.uint32(
        np.uint32(data[at])
        | np.uint32(data[at + 1]) << np.uint32(8)
        | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )


@kernel
def split(data: U8, tables: U32x2, begins: I64, ends: I64) -> tuple[Int, Int, Int, Int]:
    """Find the whole records at the start of `data`, at most as many as `begins` has room for.

    Returns how many, how many bytes they take, a status, and how many bytes the next record needs
    in all; 0 if that is not known yet. At a wrong checksum it stops before that record.
    """
    count = 0
    at: Int = 0
    while count < begins.size and at + HEADER <= data.size:
        low = _word(data, at)
        high = _word(data, at + 4)
        if masked_crc32c(data, at, at + 8, tables) != _word(data, at + 8):
            return count, at, BAD_LENGTH, 0

        length = np.int64(low) | np.int64(high) << 32
        if length < 0 or length > np.int64(1) << 40:
            return count, at, BAD_LENGTH, 0

        begin = at + HEADER
        end = begin + length
        if end + FOOTER > data.size:
            return count, at, WHOLE, HEADER + length + FOOTER
        if masked_crc32c(data, begin, end, tables) != _word(data, end):
            return count, at, BAD_DATA, 0

        begins[count] = begin
        ends[count] = end
        count += 1
        at = end + FOOTER

    return count, at, WHOLE, 0
