"""Exponential moving average of the pushed values. There is no state and no learning rate."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields, look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import MovingAverage


def params_of(settings: MovingAverage) -> list[float]:
    return [settings.momentum]


def state_of(settings: MovingAverage, dim: int) -> Fields:
    return []


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
    """Params: momentum."""
    momentum = params[0]
    rest = np.float32(1) - momentum
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, 0)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        for j in range(count):
            values[x + j] = momentum * values[x + j] + rest * grads[i, column + j]
