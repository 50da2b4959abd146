"""Adamom: momentum over the root of a weighted mean of all squared gradients.

state: m[dim], v[dim], c
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
    """Params: decay of squares, decay of the mean, epsilon, weight decay."""
    ada, mom, epsilon, decay = params[0], params[1], params[2], params[3]
    one = np.float32(1)
    rest = one - mom
    count, column = np.uint64(dim), np.uint64(g)
    for i in range(starts.size):
        if starts[i] < 0:
            continue
        x, m = np.uint64(starts[i] + w), np.uint64(starts[i] + s)
        v = m + count
        total = ada * values[v + count] + one
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + decay * weight
            mean = mom * values[m + j] + rest * gradient
            square = ada * values[v + j] + gradient * gradient
            values[m + j] = mean
            values[v + j] = square
            values[x + j] = weight - mean * lr / np.sqrt(square / total + epsilon)
        values[v + count] = total
