"""Adamom: momentum over the root of a weighted mean of all squared gradients."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.dense_optimizers import Adamom


def params_of(settings: Adamom) -> list[float]:
    return [settings.ada_decay, settings.mom_decay, settings.epsilon, settings.weight_decay]


def state_of(settings: Adamom, dim: int) -> Fields:
    return [("m", dim, 0.0), ("v", dim, 0.0), ("c", 1, 0.0)]


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
    """Params: decay of squares, decay of the mean, epsilon, weight decay."""
    ada = params[0]
    mom = params[1]
    epsilon = params[2]
    decay = params[3]
    one = np.float32(1)
    rest = one - mom
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        if starts[i] < 0:
            continue
        x = np.uint64(starts[i] + w)
        m = np.uint64(starts[i] + s)
        v = m + count
        total = ada * values[v + count] + one
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + decay * weight
            mean = mom * values[m + j] + rest * gradient
            square = ada * values[v + j] + gradient * gradient
            values[m + j] = mean
            values[v + j] = square
            values[x + j] = weight - mean * lr / np.sqrt(square / total + epsilon)
        values[v + count] = total
