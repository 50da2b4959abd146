"""Plain gradient descent: no state."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import Sgd


def params_of(settings: Sgd) -> list[float]:
    return []


def state_of(settings: Sgd, dim: int) -> Fields:
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
    """No params."""
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        if starts[i] >= 0:
            x = np.uint64(starts[i] + w)
            for j in range(count):
                values[x + j] -= lr * grads[i, column + j]
