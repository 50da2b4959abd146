"""Momentum, plain or Nesterov's."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields, look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import Momentum


def params_of(settings: Momentum) -> list[float]:
    return [settings.weight_decay_factor, settings.momentum, float(settings.use_nesterov)]


def state_of(settings: Momentum, dim: int) -> Fields:
    return [("n", dim, 0.0)]


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
    decay = params[0]
    momentum = params[1]
    one = np.float32(1)
    of_old = np.float32(0)
    of_new = one
    if params[2] != 0:
        of_old = -momentum
        of_new = one + momentum
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, dim)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        n = np.uint64(start + s)
        for j in range(count):
            weight = values[x + j]
            old = values[n + j]
            new = momentum * old - lr * (grads[i, column + j] + decay * weight)
            values[n + j] = new
            values[x + j] = weight + (of_old * old + of_new * new)
