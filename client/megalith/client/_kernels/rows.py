"""Rows between the order of a batch and the order of the wire."""

import numpy as np

from megalith.kernels.dtypes import F32, I32
from megalith.kernels.jit import kernel


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
def scatter(rows: F32, slots: I32, out: F32) -> None:
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
