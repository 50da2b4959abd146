"""From an initializer's settings to the kernel that starts a new row."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from megalith.ps.kernels import initialize
from megalith.ps.kernels.dtypes import F32, I64
from megalith.wire.errors import InvalidSetting
from megalith.wire.initializers import Constants, Initializer, Ones, RandomUniform, Zeros

# (values, starts, w, dim, keys, seed, params): fill `dim` floats at offset `w` of the rows of `keys`
Fill = Callable[[F32, I64, int, int, I64, int, F32], None]


@dataclass(frozen=True, slots=True)
class RowInitializer:
    """One segment's initializer, ready to run. `constant` is what it fills with, or None if it depends on the id."""

    name: str
    fill: Fill
    params: F32
    constant: float | None


def row_initializer(initializer: Initializer, dim: int) -> RowInitializer:
    """The initializer of a segment of `dim` floats."""
    if dim < 1:
        raise InvalidSetting(f"{initializer.name}: a segment of {dim} floats has nothing to start")
    match initializer:
        case Zeros():
            return _constant(initializer.name, 0.0)
        case Ones():
            return _constant(initializer.name, 1.0)
        case Constants(constant):
            return _constant(initializer.name, constant)
        case RandomUniform(minval, maxval):
            low, high = np.float32(minval), np.float32(maxval)
            last = max(low, np.nextafter(high, low))  # equal bounds are allowed, and give that one value
            params = np.array([low, high, last], np.float32)
            return RowInitializer(initializer.name, initialize.fill_uniform, params, None)


def _constant(name: str, constant: float) -> RowInitializer:
    return RowInitializer(name, initialize.fill_constant, np.array([constant], np.float32), constant)
