"""Stochastic rounding of weights to binary16, stored as float32. Comes after an optimizer."""

import numpy as np

from megalith.engine.kernels.optimizers._rows import STEP_MASK, look_ahead
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.kernels.mixing import GOLDEN, mix

HALF_MAX = np.float32(65504)
# The distance between neighbouring halves, by the exponent byte of a float32: 10 bits of mantissa,
# and evenly spaced below 2^-14.
SPACING = np.exp2(np.maximum(np.arange(256) - 127, -14) - 10).astype(np.float32)


@kernel
def rounded(weight: np.float32, bits: np.uint32, p: np.float32) -> np.float32:
    """The half above `weight` if p <= (weight - below) / (above - below), else the one below.

    A half itself stays.

    `bits` are the bits of `weight`, p is in [0, 1). Beyond the halves the largest one is taken; NaN
    and infinity stay.
    """
    if not np.isfinite(weight):
        return weight
    if abs(weight) > HALF_MAX:
        return HALF_MAX if weight > 0 else -HALF_MAX
    spacing = SPACING[(bits >> np.uint32(23)) & np.uint32(0xFF)]
    quotient = weight / spacing  # exact, as is all that follows: the spacing is a power of two
    below = np.floor(quotient)
    if quotient == below:
        return weight
    if p <= quotient - below:
        return np.float32((below + np.float32(1)) * spacing)
    return np.float32(below * spacing)


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
    """Round the weights; gradients and state are not read. Params: the number of this call.

    The kernel counts that number up, without a lock. What decides is a hash of a weight's position,
    the step and the number of the call. The call takes part because a caller may repeat a step: a
    threshold that stayed the same for a position would send the same fraction the same way each
    time, and small updates would be lost after all. Threads that take the same number at once do no
    harm, since they round at different positions; nor does a number that is lost between them.
    """
    call = np.uint64(params[0])
    params[0] = np.float32((call + np.uint64(1)) & np.uint64(STEP_MASK))
    salt = mix(call + GOLDEN * np.uint64(step))
    every_bit = values.view(np.uint32)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, 0, 0)
        start = starts[i]
        if start < 0:
            continue
        x = np.uint64(start + w)
        for j in range(np.uint64(dim)):
            draw = mix(salt + GOLDEN * (x + j))
            p = np.float32(draw >> np.uint64(40)) * np.float32(2.0**-24)
            values[x + j] = rounded(values[x + j], every_bit[x + j], p)
