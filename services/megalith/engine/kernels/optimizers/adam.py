"""Adam with its powers in the row."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields, look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import Adam


def params_of(settings: Adam) -> list[float]:
    return [
        settings.beta1,
        settings.beta2,
        settings.weight_decay_factor,
        settings.epsilon,
        float(settings.use_nesterov),
    ]


def state_of(settings: Adam, dim: int) -> Fields:
    return [
        ("m", dim, 0.0),
        ("v", dim, 0.0),
        ("beta1_power", 1, settings.beta1),
        ("beta2_power", 1, settings.beta2),
    ]


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
    """Params: beta1, beta2, weight decay, epsilon, nesterov (0 or 1)."""
    beta1 = params[0]
    beta2 = params[1]
    decay = params[2]
    epsilon = params[3]
    one = np.float32(1)
    rest1 = one - beta1
    rest2 = one - beta2
    of_gradient, of_mean = (rest1, beta1) if params[4] != 0 else (np.float32(0), one)
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, 2 * dim + 2)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        m = np.uint64(start + s)
        v = m + count
        power1 = v + count
        power2 = v + count + np.uint64(1)
        rate = lr * np.sqrt(one - values[power2]) / (one - values[power1])
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + decay * weight
            mean = values[m + j] + (gradient - values[m + j]) * rest1
            square = values[v + j] + (gradient * gradient - values[v + j]) * rest2
            values[m + j] = mean
            values[v + j] = square
            values[x + j] = weight - (of_gradient * gradient + of_mean * mean) * rate / (
                np.sqrt(square) + epsilon
            )
        values[power1] *= beta1
        values[power2] *= beta2
