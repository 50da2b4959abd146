"""Adadelta."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields, look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import Adadelta


def params_of(settings: Adadelta) -> list[float]:
    return [settings.weight_decay_factor, settings.averaging_ratio, settings.epsilon]


def state_of(settings: Adadelta, dim: int) -> Fields:
    return [("accum", dim, 0.0), ("accum_update", dim, 0.0)]


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
    """Params: weight decay, averaging ratio, epsilon."""
    decay = params[0]
    ratio = params[1]
    epsilon = params[2]
    rest = np.float32(1) - ratio
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, 2 * dim)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        accum = np.uint64(start + s)
        accum_update = accum + count
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + decay * weight
            mean = values[accum + j] * ratio + gradient * gradient * rest
            previous = values[accum_update + j]
            update = np.sqrt(previous + epsilon) / np.sqrt(mean + epsilon) * gradient
            values[x + j] = weight - update * lr
            values[accum_update + j] = previous * ratio + update * update * rest
            values[accum + j] = mean
