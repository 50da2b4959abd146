"""The checksum of TFRecord files: CRC-32C (Castagnoli), eight bytes at a time."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.kernels.dtypes import U8
from megalith.kernels.jit import kernel

U32x2 = NDArray[np.uint32]
Int = Any  # an int to the caller, an int64 to the compiler

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, with the lowest bit first


def _make_tables() -> U32x2:
    """tables[k, b]: what byte b does to the checksum, k bytes before the end of a block of 8."""
    tables = np.zeros((8, 256), np.uint32)
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(_POLYNOMIAL), first >> 1)

    tables[0] = first
    for number in range(1, 8):
        before = tables[number - 1]
        tables[number] = (before >> 8) ^ first[before & 0xFF]

    return tables


TABLES = _make_tables()


@kernel
def masked_crc32c(data: U8, begin: Int, end: Int, tables: U32x2) -> np.uint32:
    """Of data[begin:end], masked as TFRecord files store it."""
    crc = np.uint32(0xFFFFFFFF)
    at = begin
    while at + 8 <= end:
        crc ^= np.uint32(
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        crc = np.uint32(
            tables[7, crc & np.uint32(0xFF)]
            ^ tables[6, (crc >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (crc >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, crc >> np.uint32(24)]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
        at += 8

    while at < end:
        low = (crc ^ np.uint32(data[at])) & np.uint32(0xFF)
        crc = np.uint32(tables[0, low] ^ (crc >> np.uint32(8)))
        at += 1

    crc = np.uint32(crc ^ np.uint32(0xFFFFFFFF))
    rotated = np.uint32((crc >> np.uint32(15)) | (crc << np.uint32(17)))
    return np.uint32(rotated + np.uint32(0xA282EAD8))
