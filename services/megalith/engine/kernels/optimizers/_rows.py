"""What the row loops of optimizers share: looking ahead, and whole numbers in float32 slots."""

from megalith.engine.kernels.prefetch import prefetch
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel

# What a row keeps for an optimizer: (name, float32 slots, initial value), in memory order. A name
# that ends in `_step` is a step, which takes STEP_SLOTS.
Fields = list[tuple[str, int, float]]

# Rows are random, so each is a cache miss or several. Over 512 MB of rows, 8 ahead take amsgrad at
# 64 floats from 3.8 to 6.4 M rows/s; 4 are as good for wide rows only, and from 16 on those lose
# again. Adagrad and sgd do not look ahead: a write has fetched the rows of its block before it runs
# them (`write.locate`).
AHEAD = 8
LINE = 16  # float32 values in a cache line

STEP_SLOTS = 2
STEP_SHIFT = 24  # float32 holds every integer up to 2^24
STEP_MASK = (1 << STEP_SHIFT) - 1
NEVER = -1  # the step of an update that has not happened


@kernel
def look_ahead(values: F32, starts: I64, i: int, w: int, dim: int, s: int, state: int) -> None:
    """Start loading the weights and the state of the row that is due AHEAD positions after `i`."""
    if i + AHEAD < starts.size:
        start = starts[i + AHEAD]
        if start >= 0:
            for line in range(start + w, start + w + dim, LINE):
                prefetch(values, line)
            for line in range(start + s, start + s + state, LINE):
                prefetch(values, line)


@kernel
def load_step(values: F32, at: int) -> int:
    """The whole number that `store_step` wrote."""
    return (int(values[at]) << STEP_SHIFT) + int(values[at + 1])


@kernel
def store_step(values: F32, at: int, step: int) -> None:
    """Keep a step (|step| < 2^48) exactly in two float32 slots, high part first.

    Both halves are ordinary whole numbers rather than the bits of an int64, so that they are never
    NaN or denormal and survive whatever treats a row as floats: finiteness checks, flush-to-zero,
    columnar files.
    """
    values[at] = step >> STEP_SHIFT
    values[at + 1] = step & STEP_MASK
