"""The rows of some buckets, put together out of the columns of a file."""

from typing import Any

import numpy as np

from megalith.engine.kernels.copying import copy_floats
from megalith.kernels.dtypes import F32, I64, Bools
from megalith.kernels.jit import kernel
from megalith.kernels.mixing import bucket_of, mix

Int = Any  # an int to the caller, an int64 to the compiler


@kernel
def join(
    ids: I64,
    embeddings: F32,
    states: F32,
    times: I64,
    wanted: Bools,
    out_ids: I64,
    out_rows: F32,
    out_times: I64,
) -> Int:
    """Embedding and state side by side, of the ids whose buckets are wanted; how many these are.

    The floats are flat, of ids.size rows each.
    """
    count = max(1, ids.size)
    dim = embeddings.size // count
    state_width = states.size // count
    width = dim + state_width
    found = 0
    for i in range(ids.size):
        if wanted[bucket_of(mix(np.uint64(ids[i])))]:
            out_ids[found] = ids[i]
            out_times[found] = times[i]
            copy_floats(embeddings, i * dim, out_rows, found * width, dim)
            copy_floats(states, i * state_width, out_rows, found * width + dim, state_width)
            found += 1

    return found
