"""Whether numbers are finite."""

import numpy as np

from megalith.kernels.dtypes import F32
from megalith.kernels.jit import kernel

_EXPONENT = np.int32(0x7F800000)  # all ones in NaN and in infinity, and in nothing else


@kernel
def is_finite(flat: F32) -> bool:
    """Whether no number is NaN or infinite.

    All-ones exponents are found with integer operations, many numbers at once: 0.2 ms for 65,536
    rows of 16. It is a pass of its own: inside a loop that copies or adds rows it keeps that loop
    from being vectorised (0.42 instead of 0.14 + 0.08 ms for 39,000 rows of 16).
    """
    bits = flat.view(np.int32)
    worst = np.int32(0)
    for i in range(np.uint64(bits.size)):
        worst = max(worst, bits[i] & _EXPONENT)
    return bool(worst < _EXPONENT)
