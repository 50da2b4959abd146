"""RMSProp with a decaying sum of squares, float64 inside."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields, look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import RmspropV2


def params_of(settings: RmspropV2) -> list[float]:
    return [settings.weight_decay_factor, settings.momentum]


def state_of(settings: RmspropV2, dim: int) -> Fields:
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
    """Params: weight decay, momentum."""
    decay = np.float64(params[0])
    momentum = np.float64(params[1])
    rate = np.float64(lr)
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
            weight = np.float64(values[x + j])
            gradient = np.float64(grads[i, column + j]) + decay * weight
            square = np.float32(momentum * np.float64(values[n + j]) + gradient * gradient)
            values[n + j] = square
            # The root and the sum are float32 operations, as in Monolith; only then does it
            # widen.
            values[x + j] = weight - rate / np.float64(np.sqrt(square) + np.float32(1)) * gradient
