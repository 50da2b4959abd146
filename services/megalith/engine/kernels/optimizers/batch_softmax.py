"""Streaming estimate of the number of steps between two updates of a row."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import (
    STEP_SLOTS,
    Fields,
    load_step,
    look_ahead,
    store_step,
)
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import BatchSoftmax


def params_of(settings: BatchSoftmax) -> list[float]:
    return []


def state_of(settings: BatchSoftmax, dim: int) -> Fields:
    return [("last_step", STEP_SLOTS, 0)]


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
    """No params. `dim` is 1, `step` is not negative, and the gradients are not read."""
    rest = np.float32(1) - lr
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, STEP_SLOTS)
        start = starts[i]
        if start < 0:
            continue
        gap = step - load_step(values, start + s)
        values[start + w] = rest * values[start + w] + lr * np.float32(gap)
        store_step(values, start + s, step)
