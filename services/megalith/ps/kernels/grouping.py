"""A batch in the order of its partitions, so that a writer works through them one after the other."""

from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.codes import code_of, partition_of
from megalith.ps.kernels.dtypes import I64
from megalith.ps.kernels.layout import PARTITIONS, U64


@kernel
def group(keys: I64, codes: U64, positions: I64, bounds: I64) -> None:
    """A stable counting sort by partition.

    Partition p has the codes and positions of the batch in [bounds[p], bounds[p+1]); equal keys stay in their order.
    """
    bounds[:] = 0
    for i in range(keys.size):
        bounds[partition_of(code_of(keys[i])) + 1] += 1
    for p in range(PARTITIONS):
        bounds[p + 1] += bounds[p]
    ends = bounds[:PARTITIONS].copy()
    for i in range(keys.size):
        code = code_of(keys[i])
        p = partition_of(code)
        codes[ends[p]] = code
        positions[ends[p]] = i
        ends[p] += 1
