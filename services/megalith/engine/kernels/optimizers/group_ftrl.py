"""FTRL that keeps or drops a segment as a whole."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields, look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import GroupFtrl


def params_of(settings: GroupFtrl) -> list[float]:
    return [
        settings.beta,
        settings.l1_regularization_strength,
        settings.l2_regularization_strength,
    ]


def state_of(settings: GroupFtrl, dim: int) -> Fields:
    return [("norm", dim, settings.initial_accumulator_value), ("zero", dim, 0.0)]


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
    """Params: beta, l1, l2. A zero learning rate changes nothing."""
    if lr == 0:
        return
    beta = params[0]
    l1 = params[1]
    l2 = params[2]
    offset = beta + l2 * lr
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, 2 * dim)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        norm = np.uint64(start + s)
        zero = norm + count
        for j in range(count):
            gradient = grads[i, column + j]
            total = values[norm + j] + gradient * gradient
            sigma = (np.sqrt(total) - np.sqrt(values[norm + j])) / lr
            values[norm + j] = total
            values[zero + j] += gradient - sigma * values[x + j]
        square = np.float32(0)
        for j in range(count):
            square += values[zero + j] * values[zero + j]
        length = np.sqrt(square)
        keep = np.float32(0)
        if length > 0 and length >= l1:
            keep = lr * ((l1 - length) / length)
        for j in range(count):
            divisor = np.sqrt(values[norm + j]) + offset
            # Without beta and l2 a coordinate that never saw a gradient divides by zero; its
            # numerator is zero too.
            values[x + j] = keep * values[zero + j] / divisor if divisor > 0 else np.float32(0)
