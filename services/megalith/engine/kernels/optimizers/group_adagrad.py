"""Adagrad with one accumulator for a whole segment, and a group lasso."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields, look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import GroupAdagrad


def params_of(settings: GroupAdagrad) -> list[float]:
    return [settings.beta, settings.l2_regularization_strength, settings.weight_decay_factor]


def state_of(settings: GroupAdagrad, dim: int) -> Fields:
    return [("grad_square_sum", 1, settings.initial_accumulator_value)]


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
    """Params: beta, l2, weight decay. A zero learning rate changes nothing."""
    if lr == 0:
        return
    beta = params[0]
    l2 = params[1]
    decay = params[2]
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, 1)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        accumulator = np.uint64(start + s)
        largest = np.float32(0)
        for j in range(count):
            gradient = grads[i, column + j] + decay * values[x + j]
            largest = max(largest, gradient * gradient)
        total = values[accumulator] + largest
        values[accumulator] = total
        divisor = beta + np.sqrt(total)
        if divisor == 0:
            continue  # no gradient so far and nothing that bounds the step
        rate = lr / divisor
        square = np.float32(0)
        for j in range(count):
            z = grads[i, column + j] + decay * values[x + j] - values[x + j] / rate
            square += z * z
        length = np.sqrt(square)
        keep = np.float32(0)
        if length > 0 and length >= l2:
            keep = -rate * ((length - l2) / length)
        for j in range(count):
            weight = values[x + j]
            values[x + j] = keep * (grads[i, column + j] + decay * weight - weight / rate)
