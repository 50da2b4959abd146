"""Follow the regularized leader, per coordinate.

state: norm[dim], zero[dim]
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
    """Params: beta, l1, l2, and what to add to -zero where zero is negative and where it is positive.

    The last two are -l1 and +l1, or +l1 and 0 to reproduce the reference. A zero learning rate changes nothing.
    """
    if lr == 0:
        return
    beta, l1, l2, on_negative, on_positive = params[0], params[1], params[2], params[3], params[4]
    nothing = np.float32(0)
    offset = beta + l2 * lr
    count, column = np.uint64(dim), np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, 2 * dim)
        start = starts[i]
        if start < 0:
            continue
        x, norm = np.uint64(start + w), np.uint64(start + s)
        zero = norm + count
        for j in range(count):
            gradient = grads[i, column + j]
            total = values[norm + j] + gradient * gradient
            root = np.sqrt(total)
            sigma = (root - np.sqrt(values[norm + j])) / lr
            z = values[zero + j] + (gradient - sigma * values[x + j])
            shift = on_negative if z < 0 else on_positive
            moved = lr * (shift - z) / (root + offset)
            values[norm + j] = total
            values[zero + j] = z
            values[x + j] = nothing if abs(z) <= l1 else moved
