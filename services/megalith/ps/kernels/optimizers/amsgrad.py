"""Adam that divides by the largest second moment seen.

state: m[dim], v[dim], vhat[dim], beta1_power, beta2_power
"""

import numpy as np

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.kernels.optimizers._rows import look_ahead


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
    beta1, beta2, decay, epsilon = params[0], params[1], params[2], params[3]
    one = np.float32(1)
    rest1, rest2 = one - beta1, one - beta2
    of_gradient, of_mean = (rest1, beta1) if params[4] != 0 else (np.float32(0), one)
    count, column = np.uint64(dim), np.uint64(g)
    for i in range(starts.size):
        look_ahead(values, starts, i, w, dim, s, 3 * dim + 2)
        start = starts[i]
        if start < 0:
            continue
        x, m = np.uint64(start + w), np.uint64(start + s)
        v, vhat = m + count, m + count + count
        power1, power2 = vhat + count, vhat + count + np.uint64(1)
        rate = lr * np.sqrt(one - values[power2]) / (one - values[power1])
        for j in range(count):
            weight = values[x + j]
            gradient = grads[i, column + j] + decay * weight
            mean = values[m + j] + (gradient - values[m + j]) * rest1
            square = values[v + j] + (gradient * gradient - values[v + j]) * rest2
            largest = max(values[vhat + j], square)
            values[m + j] = mean
            values[v + j] = square
            values[vhat + j] = largest
            values[x + j] = weight - (of_gradient * gradient + of_mean * mean) * rate / (
                np.sqrt(largest) + epsilon
            )
        values[power1] *= beta1
        values[power2] *= beta2
