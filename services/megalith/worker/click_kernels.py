"""The loops of the demo's input: one pass over a batch for each feature, without the GIL.

As NumPy expressions they were some forty passes of a few microseconds each, and a thread that draws batches ahead held
up the other threads of its worker between any two of them.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

_SIGNATURE = np.uint64((1 << 48) - 1)
_EFFECT_SALT = np.int64(0x5DEECE66D)


def _kernel(function: Callable[P, R]) -> Callable[P, R]:
    return cast(Callable[P, R], numba.njit(nogil=True, cache=True, error_model="numpy")(function))


@_kernel
def _mix64(key: Any) -> Any:
    """`megalith.wire.routing.mix64` of one number."""
    x = np.uint64(key)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@_kernel
def _effect(key: Any, spread: Any) -> Any:
    """Uniform in -spread..spread, decided by the id alone."""
    unit = np.float64(_mix64(key ^ _EFFECT_SALT) >> np.uint64(11)) / np.float64(1 << 53)
    return np.float32((2.0 * unit - 1.0) * spread)


@_kernel
def draw(
    uniform: NDArray[np.float64],
    num_ids: int,
    exponent: float,
    slot: int,
    spread: float,
    ids: NDArray[np.int64],
    truth: NDArray[np.float32],
) -> None:
    """Ids of ranks with density rank ** -exponent, by inversion of the continuous law; their effects go to `truth`."""
    power = 1.0 - exponent
    scale, inverse = (num_ids + 1.0) ** power - 1.0, 1.0 / power
    for i in range(uniform.size):
        rank = np.int64(min((1.0 + uniform[i] * scale) ** inverse, np.float64(num_ids)))
        key = np.int64((_mix64(rank) & _SIGNATURE) | (np.uint64(slot) << np.uint64(48)))
        ids[i] = key
        truth[i] += _effect(key, spread)


@_kernel
def effects(ids: NDArray[np.int64], spread: float, out: NDArray[np.float32]) -> None:
    for i in range(ids.size):
        out[i] = _effect(ids[i], spread)
