"""Momentum, plain or Nesterov's.

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
    """Params: weight decay, momentum, nesterov (0 or 1)."""
    decay, momentum = params[0], params[1]
    one = np.float32(1)
    of_old, of_new = (-momentum, one + momentum) if params[2] != 0 else (np.float32(0), one)
    count, column = np.uint64(dim), np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, dim)
        start = starts[i]
        if start < 0:
            continue
        x, n = np.uint64(start + w), np.uint64(start + s)
        for j in range(count):
            weight, old = values[x + j], values[n + j]
            new = momentum * old - lr * (grads[i, column + j] + decay * weight)
            values[n + j] = new
            values[x + j] = weight + (of_old * old + of_new * new)
