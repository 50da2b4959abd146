"""Adagrad with weight decay coupled or decoupled, constant or following the gap between updates."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import (
    NEVER,
    STEP_SLOTS,
    Fields,
    load_step,
    look_ahead,
    store_step,
)
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.schema.optimizers import DynamicWdAdagrad


def params_of(settings: DynamicWdAdagrad) -> list[float]:
    exponent = 0.0
    if settings.enable_dynamic_wd:
        direction = -1 if settings.flip_direction else 1
        exponent = direction / settings.dynamic_wd_temperature
    return [settings.weight_decay_factor, float(settings.decouple_weight_decay), exponent]


def state_of(settings: DynamicWdAdagrad, dim: int) -> Fields:
    return [
        ("norm", dim, settings.initial_accumulator_value),
        ("last_update_step", STEP_SLOTS, NEVER),
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
    """Params: weight decay, decoupled (0 or 1), exponent of the gap (0 = constant decay)."""
    decay = params[0]
    decoupled = params[1] != 0
    exponent = params[2]
    one = np.float32(1)
    zero = np.float32(0)
    count = np.uint64(dim)
    column = np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, dim + STEP_SLOTS)
        start = starts[i]
        if start < 0:
            continue
        last = start + s + dim
        wd = decay
        if exponent != 0:
            before = load_step(values, last)
            if before >= 0:
                wd = decay * np.float32(max(step - before, 1)) ** exponent
        store_step(values, last, step)
        coupled = zero if decoupled else wd
        shrink = min(lr * wd, one) if decoupled else zero
        x = np.uint64(start + w)
        norm = np.uint64(start + s)
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + coupled * weight
            total = values[norm + j] + gradient * gradient
            values[norm + j] = total
            values[x + j] = weight - (lr / np.sqrt(total) * gradient + shrink * weight)
