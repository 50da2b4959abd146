"""Optimizer steps on rows, in the order of the gradients."""

import numpy as np
from numpy.typing import NDArray

from megalith.ps.kernels._jit import kernel


@kernel
def sgd(values: NDArray[np.float32], rows: NDArray[np.int64], grads: NDArray[np.float32], lr: np.float32) -> None:
    """W -= lr * g."""
    for i in range(rows.size):
        for j in range(grads.shape[1]):
            values[rows[i], j] -= lr * grads[i, j]


@kernel
def adagrad(
    values: NDArray[np.float32],
    rows: NDArray[np.int64],
    grads: NDArray[np.float32],
    lr: np.float32,
    decay: np.float32,
) -> None:
    """Norm += g*g; w -= lr * g / sqrt(norm). The accumulators follow the embedding in the row."""
    dim = grads.shape[1]
    for i in range(rows.size):
        row = rows[i]
        for j in range(dim):
            g = grads[i, j] + decay * values[row, j]
            norm = values[row, dim + j] + g * g
            values[row, dim + j] = norm
            values[row, j] -= lr * g / np.sqrt(norm)
