"""What a training lookup shows of the stored weights, and what of a gradient reaches them.

    forward(out, column, dim, params)                            in place, on looked-up rows
    backward(values, starts, w, grads, g, dim, params, out)      grads[:, g : g + dim] -> the same columns of `out`

`out` of backward may be `grads` itself. Rows with start -1 keep what `out` has there. A row that occurs twice is
differentiated at the weights before the call both times.
"""

import math

import numpy as np

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.compress import quantize
from megalith.ps.kernels.dtypes import F32, I64


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
    """Rounded once, from float64: 1 - tanh^2 below magnifies an error of one bit."""
    return np.float32(math.tanh(np.float64(x)))


@kernel
def forward_one_bit(out: F32, column: int, dim: int, params: F32) -> None:
    """Params: amplitude, scale."""
    amplitude, scale = params[0], params[1]
    first = np.uint64(column)
    for i in range(out.shape[0]):
        for j in range(np.uint64(dim)):
            out[i, first + j] = amplitude * tanh(scale * out[i, first + j])


@kernel
def backward_one_bit(values: F32, starts: I64, w: int, grads: F32, g: int, dim: int, params: F32, out: F32) -> None:
    """Params: amplitude, scale."""
    amplitude, scale = params[0], params[1]
    slope = np.float64(amplitude * scale)
    first = np.uint64(g)
    for i in range(starts.size):
        if starts[i] < 0:
            continue
        x = np.uint64(starts[i] + w)
        for j in range(np.uint64(dim)):
            y = np.float64(tanh(scale * values[x + j]))
            # 1 - y*y in float64, where it is exact: near saturation float32 would lose half of its digits.
            out[i, first + j] = np.float64(grads[i, first + j]) * (slope * (1.0 - y * y))
