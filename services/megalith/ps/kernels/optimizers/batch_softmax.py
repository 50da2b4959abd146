"""Streaming estimate of the number of steps between two updates of a row.

state: last step (two slots)
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
    """No params. `dim` is 1, `step` is not negative, and the gradients are not read."""
    rest = np.float32(1) - lr
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, STEP_SLOTS)
        start = starts[i]
        if start < 0:
            continue
        gap = step - load_step(values, start + s)
        values[start + w] = rest * values[start + w] + lr * np.float32(gap)
        store_step(values, start + s, step)
