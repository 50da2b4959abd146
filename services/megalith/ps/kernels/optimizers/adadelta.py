"""Adadelta.

state: accum[dim], accum_update[dim]
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
    """Params: weight decay, averaging ratio, epsilon."""
    decay, ratio, epsilon = params[0], params[1], params[2]
    rest = np.float32(1) - ratio
    count, column = np.uint64(dim), np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, 2 * dim)
        start = starts[i]
        if start < 0:
            continue
        x, accum = np.uint64(start + w), np.uint64(start + s)
        accum_update = accum + count
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + decay * weight
            mean = values[accum + j] * ratio + gradient * gradient * rest
            previous = values[accum_update + j]
            update = np.sqrt(previous + epsilon) / np.sqrt(mean + epsilon) * gradient
            values[x + j] = weight - update * lr
            values[accum_update + j] = previous * ratio + update * update * rest
            values[accum + j] = mean
