"""RMSProp with a decaying sum of squares, float64 inside.

state: n[dim]
"""

import numpy as np

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.kernels.optimizers._rows import look_ahead


@kernel
def apply(
    values: F32,
    starts: I64,
    w: int,
    s: int,
    grads: F32,
    g: int,
    dim: int,
    lr: np.float32,
    params: F32,
    step: int,
) -> None:
    """Params: weight decay, momentum."""
    decay, momentum, rate = np.float64(params[0]), np.float64(params[1]), np.float64(lr)
    count, column = np.uint64(dim), np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, dim)
        start = starts[i]
        if start < 0:
            continue
        x, n = np.uint64(start + w), np.uint64(start + s)
        for j in range(count):
            weight = np.float64(values[x + j])
            gradient = np.float64(grads[i, column + j]) + decay * weight
            square = np.float32(momentum * np.float64(values[n + j]) + gradient * gradient)
            values[n + j] = square
            # The root and the sum are float32 operations, as in the reference; only then does it widen.
            values[x + j] = weight - rate / np.float64(np.sqrt(square) + np.float32(1)) * gradient
