"""From an initializer's settings to what a new row starts with: a constant, or a kernel."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from megalith.engine.kernels import initialize
from megalith.errors import InvalidSetting
from megalith.kernels.dtypes import F32, I64
from megalith.schema.initializers import Constants, Initializer, Ones, RandomUniform, Zeros

# (values, starts, w, dim, ids, seed, params): fill `dim` floats at offset `w` of the rows of
# `ids`
Fill = Callable[[F32, I64, int, int, I64, int, F32], None]


@dataclass(frozen=True, slots=True)
class Random:
    """A kernel of kernels/initialize.py with its parameters; `name` is its own."""

    name: str
    fill: Fill
    params: F32


def row_initializer(initializer: Initializer, dim: int) -> float | Random:
    """What `dim` floats of a new row start with: all with one number, or at random."""
    if dim < 1:
        raise InvalidSetting(f"{initializer.name}: a segment of {dim} floats has nothing to start")

    match initializer:
        case Zeros():
            return 0.0
        case Ones():
            return 1.0
        case Constants(constant):
            return constant
        case RandomUniform(minval, maxval):
            low = np.float32(minval)
            high = np.float32(maxval)
            # Equal bounds are allowed, and give that one value.
            last = max(low, np.nextafter(high, low))
            params = np.array([low, high, last], np.float32)
            return Random("fill_uniform", initialize.fill_uniform, params)
