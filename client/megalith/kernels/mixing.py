"""The hash of ids, compiled. It is fixed for good, see mix64.py.

megalith.wire.routing has it for whole arrays without the compiler, for processes that need no
kernel.
"""

import numpy as np

from megalith.kernels.jit import inlined, kernel
from megalith.kernels.mix64 import BUCKET_SHIFT, FACTOR_1, FACTOR_2, SHIFT_1, SHIFT_2, SHIFT_3

GOLDEN = np.uint64(
    0x9E3779B97F4A7C15
)  # 2^64 / golden ratio: consecutive multiples are far apart in every bit


@kernel
def mix(x: np.uint64) -> np.uint64:
    """The splitmix64 finalizer, a bijection.

    Routing uses its top ten bits to choose a server, so the ids of one server share them: take the
    low bits here.
    """
    x ^= x >> SHIFT_1
    x *= FACTOR_1
    x ^= x >> SHIFT_2
    x *= FACTOR_2
    return x ^ (x >> SHIFT_3)


@inlined
def bucket_of(code: np.uint64) -> np.uint64:
    """The routing bucket of an id whose hash is `code`."""
    return code >> BUCKET_SHIFT
