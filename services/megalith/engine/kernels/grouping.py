"""A part of a batch in the order of the partitions.

So a writer works through the partitions one after the other.
"""

from megalith.engine.kernels.codes import code_of, partition_of
from megalith.engine.kernels.copying import copy_floats
from megalith.engine.kernels.layout import PARTITIONS, U64, Int, Secret
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import inlined, kernel

# ids of a part, and the floats of its inputs: 1 MB
_MOST = 16384
_LEAST = 4096
_FLOATS = 262144


@inlined
def part_length(num_ids: Int, width: Int) -> Int:
    """How many ids to group at once: all, or as many as keep their inputs in the cache.

    Not fewer: a partition gets a thirty-second of them, and its blocks should be full.
    """
    return min(num_ids, max(_LEAST, min(_MOST, _FLOATS // max(1, width))))


@kernel
def group(
    secret: Secret,
    ids: I64,
    inputs: F32,
    begin: Int,
    count: Int,
    codes: U64,
    positions: I64,
    ordered: F32,
    bounds: I64,
) -> None:
    """A stable counting sort by partition of the `count` positions from `begin` on.

    Partition p has its codes, positions of the batch and inputs in [bounds[p], bounds[p+1]); equal
    ids stay in their order. The inputs are brought into the same order, so that an action reads
    rows and inputs side by side and may overwrite what it got.
    """
    bounds[:] = 0
    for i in range(begin, begin + count):
        bounds[partition_of(code_of(secret, ids[i])) + 1] += 1
    for p in range(PARTITIONS):
        bounds[p + 1] += bounds[p]
    ends = bounds[:PARTITIONS].copy()
    source = inputs.reshape(-1)
    target = ordered.reshape(-1)
    width = inputs.shape[1]
    for i in range(begin, begin + count):
        code = code_of(secret, ids[i])
        p = partition_of(code)
        codes[ends[p]] = code
        positions[ends[p]] = i
        copy_floats(source, i * width, target, ends[p] * width, width)
        ends[p] += 1
