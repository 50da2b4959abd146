"""The loops of the factorization machine: each reads the vectors of a batch once.

NumPy expressions make arrays as large as the vectors three times: of 4,096 examples with 26 vectors
of 16 numbers, forward takes 6.1 ms instead of 0.5, and back 4.6 instead of 0.3 (AMD EPYC).
"""

import numpy as np

from megalith.kernels.dtypes import F32
from megalith.kernels.jit import kernel


@kernel
def pair_sums(vectors: F32, totals: F32, out: F32) -> None:
    """The sum of an example's vectors, and the sum of the products of all pairs of them.

    `vectors` is [examples, features, dim], contiguous; `totals` is [examples, dim].
    """
    num_features = vectors.shape[1]
    dim = vectors.shape[2]
    squares = np.empty(dim, vectors.dtype)
    source = vectors.reshape(-1)
    sums = totals.reshape(-1)

    for b in range(vectors.shape[0]):
        at = b * dim
        for c in range(dim):
            sums[at + c] = 0
            squares[c] = 0

        for f in range(num_features):
            begin = (b * num_features + f) * dim
            for c in range(dim):
                value = source[begin + c]
                sums[at + c] += value
                squares[c] += value * value

        pairs = squares[0] - squares[0]  # zero of the vectors' own type
        for c in range(dim):
            pairs += sums[at + c] * sums[at + c] - squares[c]

        out[b] = pairs / 2


@kernel
def add_partners(vectors: F32, totals: F32, error: F32, out: F32) -> None:
    """out[b, f] += error[b] * (sum of the other vectors of example b), the gradient of `pair_sums`.

    `out` is [examples, features, dim], contiguous like `vectors`.
    """
    num_features = vectors.shape[1]
    dim = vectors.shape[2]
    source = vectors.reshape(-1)
    sums = totals.reshape(-1)
    target = out.reshape(-1)

    for b in range(vectors.shape[0]):
        scale = error[b]
        at = b * dim
        for f in range(num_features):
            begin = (b * num_features + f) * dim
            for c in range(dim):
                target[begin + c] += scale * (sums[at + c] - source[begin + c])
