"""The loops of the demo's input: one pass over a batch for each feature, without the GIL.

As NumPy expressions they were some forty passes of a few microseconds each, and a thread that draws
batches ahead held up the other threads of its worker between any two of them. A task of your own
needs no kernels before its `batch` is what a step waits for.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.kernels.jit import kernel
from megalith.kernels.mixing import mix

_SIGNATURE = np.uint64((1 << 48) - 1)
_EFFECT_SALT = np.int64(0x5DEECE66D)


@kernel
def effect(fid: Any, spread: Any) -> Any:
    """Uniform in -spread..spread, decided by the id alone."""
    mixed = mix(np.uint64(fid ^ _EFFECT_SALT))
    unit = np.float64(mixed >> np.uint64(11)) / np.float64(1 << 53)  # the 53 bits that a float has
    return np.float32((2.0 * unit - 1.0) * spread)


@kernel
def draw(
    uniform: NDArray[np.float64],
    num_ids: int,
    exponent: float,
    slot: int,
    spread: float,
    ids: NDArray[np.int64],
    truth: NDArray[np.float32],
) -> None:
    """Ids of ranks with density rank ** -exponent, by inversion of the continuous law.

    Their effects are added to `truth`.
    """
    power = 1.0 - exponent
    scale = (num_ids + 1.0) ** power - 1.0
    inverse = 1.0 / power
    slot_bits = np.uint64(slot) << np.uint64(48)

    for i in range(uniform.size):
        drawn = (1.0 + uniform[i] * scale) ** inverse
        rank = np.int64(min(drawn, np.float64(num_ids)))
        signature = mix(np.uint64(rank)) & _SIGNATURE
        fid = np.int64(signature | slot_bits)
        ids[i] = fid
        truth[i] += effect(fid, spread)
