"""RMSProp with momentum: steps over the root of the mean square, repeated with decay."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.dense_optimizers import DenseRmsprop


def params_of(settings: DenseRmsprop) -> list[float]:
    return [settings.beta1, settings.beta2, settings.epsilon, settings.weight_decay]


def state_of(settings: DenseRmsprop, dim: int) -> Fields:
    return [("m", dim, 0.0), ("v", dim, 0.0)]


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
    """Params: beta1, beta2, epsilon, weight decay."""
    beta1 = params[0]
    beta2 = params[1]
    epsilon = params[2]
    decay = params[3]
    rest = np.float32(1) - beta2
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        if starts[i] < 0:
            continue
        x = np.uint64(starts[i] + w)
        m = np.uint64(starts[i] + s)
        v = m + count
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + decay * weight
            square = values[v + j] + (gradient * gradient - values[v + j]) * rest
            moved = beta1 * values[m + j] + gradient * lr / np.sqrt(square + epsilon)
            values[v + j] = square
            values[m + j] = moved
            values[x + j] = weight - moved
