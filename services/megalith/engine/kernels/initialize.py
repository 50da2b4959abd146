"""Where new rows start at random.

The numbers depend on the seed, the id and the column only.
"""

import numpy as np

from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel
from megalith.kernels.mixing import GOLDEN, mix

BELOW_ONE = np.float32(1 - 2.0**-24)
TWO_TO_MINUS_32 = np.float32(2.0**-32)


@kernel
def uniform(
    draw: np.uint64, minval: np.float32, maxval: np.float32, last: np.float32
) -> np.float32:
    """Monolith's map from 32 random bits to [minval, maxval).

    `last` is the largest float below maxval.
    """
    share = min(np.float32(draw) * TWO_TO_MINUS_32, BELOW_ONE)
    return min(share * (maxval - minval) + minval, last)


@kernel
def fill_uniform(
    values: F32, starts: I64, w: int, dim: int, ids: I64, seed: int, params: F32
) -> None:
    """Params: minval, maxval, the largest float below maxval. Rows with start -1 are skipped.

    Number j of a segment is draw w + j of its row, so that two segments of a row do not repeat each
    other.
    """
    minval = params[0]
    maxval = params[1]
    last = params[2]
    salt = mix(np.uint64(seed) + GOLDEN)
    for i in range(starts.size):
        if starts[i] >= 0:
            x = np.uint64(starts[i] + w)
            first = np.uint64(w + 1)
            stream = mix(np.uint64(ids[i]) ^ salt)
            for j in range(np.uint64(dim)):
                draw = mix(stream + GOLDEN * (first + j)) >> np.uint64(32)
                values[x + j] = uniform(draw, minval, maxval, last)
