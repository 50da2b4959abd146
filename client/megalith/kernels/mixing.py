"""The hash of ids. It is fixed for good.

Routing, the cells of filters in checkpoints and the start of random rows depend on it.

megalith.wire.routing has it for whole arrays without the compiler, for processes that need no
kernel.
"""

import numpy as np

from megalith.kernels.jit import inlined, kernel

GOLDEN = np.uint64(
    0x9E3779B97F4A7C15
)  # 2^64 / golden ratio: consecutive multiples are far apart in every bit
_A = np.uint64(0xBF58476D1CE4E5B9)
_B = np.uint64(0x94D049BB133111EB)
_BUCKET_SHIFT = np.uint64(54)  # 1024 buckets


@kernel
def mix(x: np.uint64) -> np.uint64:
    """The splitmix64 finalizer, a bijection.

    Routing uses its top ten bits to choose a server, so the ids of one server share them: take the
    low bits here.
    """
    x ^= x >> np.uint64(30)
    x *= _A
    x ^= x >> np.uint64(27)
    x *= _B
    return x ^ (x >> np.uint64(31))


@inlined
def bucket_of(code: np.uint64) -> np.uint64:
    """The routing bucket of an id whose hash is `code`."""
    return code >> _BUCKET_SHIFT
