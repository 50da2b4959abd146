"""Follow the regularized leader, per coordinate."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import Fields, look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import Ftrl


def params_of(settings: Ftrl) -> list[float]:
    l1 = settings.l1_regularization_strength
    shifts = [l1, 0.0] if settings.sign_bit_l1 else [-l1, l1]
    return [settings.beta, l1, settings.l2_regularization_strength, *shifts]


def state_of(settings: Ftrl, dim: int) -> Fields:
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
    """Params: beta, l1, l2, and what to add to -zero where zero is negative and positive.

    The last two are -l1 and +l1, or +l1 and 0 to reproduce Monolith. A zero learning rate
    changes nothing.
    """
    if lr == 0:
        return
    beta = params[0]
    l1 = params[1]
    l2 = params[2]
    on_negative = params[3]
    on_positive = params[4]
    nothing = np.float32(0)
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
            root = np.sqrt(total)
            sigma = (root - np.sqrt(values[norm + j])) / lr
            z = values[zero + j] + (gradient - sigma * values[x + j])
            shift = on_negative if z < 0 else on_positive
            moved = lr * (shift - z) / (root + offset)
            values[norm + j] = total
            values[zero + j] = z
            values[x + j] = nothing if abs(z) <= l1 else moved
