"""Adagrad: each weight slows down with the sum of its squared gradients.

The width is a run-time number on purpose. With a constant 16 the compiler unrolls the loop into 16
scalar square roots (10 M rows/s); with one from the arguments it is vectorised (17 M rows/s, 10 M
rows of 16 + 16 floats).
"""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import Adagrad


def params_of(settings: Adagrad) -> list[float]:
    return [settings.weight_decay_factor]


def state_of(settings: Adagrad, dim: int) -> Fields:
    return [("norm", dim, settings.initial_accumulator_value)]


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
    """Params: weight decay."""
    decay = params[0]
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        if starts[i] < 0:
            continue
        x = np.uint64(starts[i] + w)
        norm = np.uint64(starts[i] + s)
        for j in range(count):
            gradient = grads[i, column + j] + decay * values[x + j]
            total = values[norm + j] + gradient * gradient
            values[norm + j] = total
            values[x + j] -= lr / np.sqrt(total) * gradient
