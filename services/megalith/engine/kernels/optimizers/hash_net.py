"""The derivative of a lookup through amplitude * tanh(scale * w). Comes before an optimizer."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import look_ahead
from megalith.engine.kernels.retrieve import hash_net_scale, tanh
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
    """Params: amplitude, initial scale, largest scale, steps between two scales.

    Multiply g by the derivative at w.
    """
    amplitude = params[0]
    scale = hash_net_scale(params, step)
    slope = np.float64(amplitude * scale)
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, 0, 0)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        for j in range(count):
            y = np.float64(tanh(scale * values[x + j]))
            # 1 - y*y in float64, where it is exact: near saturation float32 would lose half of its
            # digits.
            grads[i, column + j] = np.float64(grads[i, column + j]) * (slope * (1.0 - y * y))
