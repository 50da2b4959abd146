"""RMSProp with momentum over a decaying sum of squares instead of their mean.

state: m[dim], v[dim]
"""

import numpy as np

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.dtypes import F32, I64


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
    """Params: beta1, beta2, epsilon, weight decay."""
    beta1, beta2, epsilon, decay = params[0], params[1], params[2], params[3]
    count, column = np.uint64(dim), np.uint64(g)
    for i in range(starts.size):
        if starts[i] < 0:
            continue
        x, m = np.uint64(starts[i] + w), np.uint64(starts[i] + s)
        v = m + count
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + decay * weight
            square = beta2 * values[v + j] + gradient * gradient
            moved = beta1 * values[m + j] + gradient * lr / (np.sqrt(square) + epsilon)
            values[v + j] = square
            values[m + j] = moved
            values[x + j] = weight - moved
