"""Delay compensation: gradients corrected for how far their weights have moved.

Comes before an optimizer.
"""

import numpy as np

from megalith.engine.kernels.optimizers._rows import look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel


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
    """Params: strength. Replace g by g + strength * g*g * (w - pulled).

    `grads` has the pulled weights in its second half: those of this segment are at g + half of the
    columns.
    """
    strength = params[0]
    count = np.uint64(dim)
    column = np.uint64(g)
    pulled = np.uint64(g + grads.shape[1] // 2)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, 0, 0)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        for j in range(count):
            gradient = grads[i, column + j]
            moved = values[x + j] - grads[i, pulled + j]
            grads[i, column + j] = gradient + strength * gradient * gradient * moved
