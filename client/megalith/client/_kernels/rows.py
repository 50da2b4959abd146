"""Rows between the order of a batch and the order of the wire."""

import numpy as np

from megalith.kernels.dtypes import F32, I32
from megalith.kernels.jit import kernel

_EXPONENT = np.int32(0x7F800000)  # all ones in NaN and infinity, and in nothing else


@kernel
def gather(rows: F32, slots: I32, out: F32) -> None:
    """out[i] = rows[slots[i]]."""
    width = np.uint64(rows.shape[1])
    source = rows.reshape(-1)
    target = out.reshape(-1)
    for i in range(slots.size):
        begin = np.uint64(slots[i]) * width
        at = np.uint64(i) * width
        for j in range(width):
            target[at + j] = source[begin + j]


@kernel
def place(rows: F32, slots: I32, out: F32) -> None:
    """out[slots[i]] = rows[i]; every slot occurs once."""
    width = np.uint64(rows.shape[1])
    source = rows.reshape(-1)
    target = out.reshape(-1)
    for i in range(slots.size):
        begin = np.uint64(i) * width
        at = np.uint64(slots[i]) * width
        for j in range(width):
            target[at + j] = source[begin + j]


@kernel
def add(rows: F32, slots: I32, out: F32) -> None:
    """out[slots[i]] += rows[i], in order; `out` comes zeroed."""
    width = np.uint64(rows.shape[1])
    source = rows.reshape(-1)
    target = out.reshape(-1)
    for i in range(slots.size):
        begin = np.uint64(i) * width
        at = np.uint64(slots[i]) * width
        for j in range(width):
            target[at + j] += source[begin + j]


@kernel
def is_finite(flat: F32) -> bool:
    """Whether no number is NaN or infinite.

    A pass of its own: inside the loops above it keeps them from being vectorised (0.42 instead of
    0.14 + 0.08 ms for 39,000 rows of 16).
    """
    bits = flat.view(np.int32)
    worst = np.int32(0)
    for i in range(np.uint64(bits.size)):
        worst = max(worst, bits[i] & _EXPONENT)
    return bool(worst < _EXPONENT)
