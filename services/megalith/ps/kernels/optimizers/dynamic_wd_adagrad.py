"""Adagrad with weight decay coupled or decoupled, constant or following the gap between updates.

state: norm[dim], last update step (two slots, -1 = never)
"""

import numpy as np

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.kernels.optimizers._rows import STEP_SLOTS, load_step, look_ahead, store_step


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
    """Params: weight decay, decoupled (0 or 1), exponent of the gap (0 = constant decay)."""
    decay, decoupled, exponent = params[0], params[1] != 0, params[2]
    one, zero = np.float32(1), np.float32(0)
    count, column = np.uint64(dim), np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, dim + STEP_SLOTS)
        start = starts[i]
        if start < 0:
            continue
        last = start + s + dim
        wd = decay
        if exponent != 0:
            before = load_step(values, last)
            if before >= 0:
                wd = decay * np.float32(max(step - before, 1)) ** exponent
        store_step(values, last, step)
        coupled = zero if decoupled else wd
        shrink = min(lr * wd, one) if decoupled else zero
        x, norm = np.uint64(start + w), np.uint64(start + s)
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + coupled * weight
            total = values[norm + j] + gradient * gradient
            values[norm + j] = total
            values[x + j] = weight - (lr / np.sqrt(total) * gradient + shrink * weight)
