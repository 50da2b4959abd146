"""Reading and starting rows. A row is [embedding | optimizer state], `values[row]`."""

import numpy as np
from numpy.typing import NDArray

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.index import EMPTY, mix


@kernel
def gather(values: NDArray[np.float32], rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """out[i] = the embedding of rows[i]; zeros where the id is not in the table."""
    for i in range(rows.size):
        for j in range(out.shape[1]):
            out[i, j] = np.float32(0) if rows[i] == EMPTY else values[rows[i], j]


@kernel
def start_uniform(
    values: NDArray[np.float32],
    keys: NDArray[np.int64],
    first_row: int,
    dim: int,
    minval: np.float32,
    maxval: np.float32,
) -> None:
    """Embeddings of rows first_row.. uniform in [minval, maxval), decided by the id alone."""
    for i in range(keys.size):
        state = mix(keys[i])
        for j in range(dim):
            state = mix(np.int64(state + np.uint64(0x9E3779B97F4A7C15)))
            unit = np.float32(state >> np.uint64(40)) * np.float32(1.0 / (1 << 24))
            values[first_row + i, j] = minval + unit * (maxval - minval)
