"""What is done to the rows of a batch before they touch a table."""

import numpy as np

from megalith.kernels.dtypes import F32, I32, I64, Bools
from megalith.kernels.finite import is_finite
from megalith.kernels.jit import kernel


@kernel
def sum_groups(inputs: F32, group: I32, sums: F32, counts: I64) -> None:
    """Add each row of `inputs` to the sum of its group, in order; sums and counts come zeroed."""
    for i in range(group.size):
        counts[group[i]] += 1
        for j in range(np.uint64(inputs.shape[1])):
            sums[group[i], j] += inputs[i, j]


@kernel
def finite_rows(inputs: F32, out: Bools) -> None:
    """Whether each row of `inputs` is finite."""
    for i in range(inputs.shape[0]):
        out[i] = is_finite(inputs[i])
