"""What a training lookup shows of the stored weights.

forward(out, column, dim, params) works in place on looked-up rows.
"""

import math

import numpy as np

from megalith.engine.kernels.compress import quantize
from megalith.kernels.dtypes import F32
from megalith.kernels.jit import kernel

SCALE_GROWTH = 0.005  # a step


@kernel
def forward_fixed_r8(out: F32, column: int, dim: int, params: F32) -> None:
    """Params: the spacing, r/128."""
    spacing = params[0]
    first = np.uint64(column)
    for i in range(out.shape[0]):
        for j in range(np.uint64(dim)):
            out[i, first + j] = quantize(out[i, first + j], spacing) * spacing


@kernel
def tanh(x: np.float32) -> np.float32:
    """Rounded once, from float64: 1 - tanh^2, its derivative, magnifies an error of one bit."""
    return np.float32(math.tanh(np.float64(x)))


@kernel
def hash_net_scale(params: F32, step: int) -> np.float32:
    """The steepness at `step`: it grows with the root of the step, in stairs.

    Params: amplitude (not used), initial scale, largest scale, steps between two scales.
    """
    stair = step - step % np.int64(params[3])
    return np.float32(
        min(np.float64(params[1]) * math.sqrt(1.0 + SCALE_GROWTH * stair), np.float64(params[2]))
    )


@kernel
def forward_one_bit(out: F32, column: int, dim: int, params: F32) -> None:
    """Params: amplitude, scale."""
    amplitude = params[0]
    scale = params[1]
    first = np.uint64(column)
    for i in range(out.shape[0]):
        for j in range(np.uint64(dim)):
            out[i, first + j] = amplitude * tanh(scale * out[i, first + j])
