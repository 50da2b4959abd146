"""Delay compensation: gradients corrected for how far their weights have moved, before any optimizer sees them."""

import numpy as np

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.kernels.optimizers._rows import look_ahead


@kernel
def compensate(
    values: F32,
    starts: I64,
    w: int,
    grads: F32,
    g: int,
    pulled: int,
    dim: int,
    strength: np.float32,
    out: F32,
) -> None:
    """Write g + strength * g*g * (w - pulled) to out[i, :dim], where column `pulled` of `grads` holds old weights.

    Positions with start -1 are left as they are in `out`.
    """
    count, column, old = np.uint64(dim), np.uint64(g), np.uint64(pulled)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, 0, 0)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        for j in range(count):
            gradient = grads[i, column + j]
            out[i, j] = gradient + strength * gradient * gradient * (values[x + j] - grads[i, old + j])
