"""A hash of many strings at once."""

import numpy as np
from numpy.typing import NDArray

from megalith.kernels.jit import kernel

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)


@kernel
def fnv1a(data: NDArray[np.uint8], ends: NDArray[np.int64], out: NDArray[np.uint64]) -> None:
    """out[i] = the 64-bit FNV-1a hash of data[ends[i - 1]:ends[i]].

    The first string begins at 0.
    """
    begin = 0
    for i in range(ends.size):
        code = _OFFSET
        for at in range(begin, ends[i]):
            code = (code ^ np.uint64(data[at])) * _PRIME
        out[i] = code
        begin = ends[i]
