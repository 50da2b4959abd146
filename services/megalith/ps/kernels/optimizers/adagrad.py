"""Adagrad: each weight slows down with the sum of its squared gradients.

state: norm[dim]

The width is a run-time number on purpose. With a constant 16 the compiler unrolls the loop into 16 scalar square roots
(10 M rows/s); with one from the arguments it is vectorised (17 M rows/s, 10 M rows of 16 + 16 floats).
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
    """Params: weight decay."""
    decay = params[0]
    count, column = np.uint64(dim), np.uint64(g)
    for i in range(starts.size):
        if starts[i] < 0:
            continue
        x, norm = np.uint64(starts[i] + w), np.uint64(starts[i] + s)
        for j in range(count):
            gradient = grads[i, column + j] + decay * values[x + j]
            total = values[norm + j] + gradient * gradient
            values[norm + j] = total
            values[x + j] -= lr / np.sqrt(total) * gradient
