"""What a table and a variable look like: plain values that the SDK builds, the wire carries and a ps obeys."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.wire.errors import InvalidSetting


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidSetting(message)


@dataclass(frozen=True, slots=True)
class Zeros:
    """A new row starts at zero."""


@dataclass(frozen=True, slots=True)
class RandomUniform:
    """A new row starts uniform in [minval, maxval)."""

    minval: float = -0.05
    maxval: float = 0.05

    def __post_init__(self) -> None:
        _require(
            math.isfinite(self.minval) and math.isfinite(self.maxval) and self.minval <= self.maxval,
            f"random_uniform: minval {self.minval} and maxval {self.maxval} must be finite and in order",
        )


@dataclass(frozen=True, slots=True)
class Sgd:
    """w -= lr * g."""

    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        _require(math.isfinite(self.learning_rate), f"sgd: learning_rate {self.learning_rate} is not finite")


@dataclass(frozen=True, slots=True)
class Adagrad:
    """norm += g*g; w -= lr * g / sqrt(norm), with g + weight_decay_factor * w in place of g."""

    learning_rate: float = 0.001
    initial_accumulator_value: float = 0.1
    weight_decay_factor: float = 0.0

    def __post_init__(self) -> None:
        _require(math.isfinite(self.learning_rate), f"adagrad: learning_rate {self.learning_rate} is not finite")
        _require(
            math.isfinite(self.initial_accumulator_value) and self.initial_accumulator_value > 0,
            f"adagrad: initial_accumulator_value {self.initial_accumulator_value} must be above 0",
        )
        _require(
            math.isfinite(self.weight_decay_factor) and self.weight_decay_factor >= 0,
            f"adagrad: weight_decay_factor {self.weight_decay_factor} must be 0 or more",
        )


Initializer = Zeros | RandomUniform
Optimizer = Sgd | Adagrad


@dataclass(frozen=True, slots=True)
class Segment:
    """One slice of a row, with its own initializer and optimizer."""

    dim: int
    initializer: Initializer = field(default_factory=Zeros)
    optimizer: Optimizer = field(default_factory=Adagrad)

    def __post_init__(self) -> None:
        _require(1 <= self.dim <= 65536, f"segment: dim {self.dim} is outside 1..65536")


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A table: a name and the slices of its rows, in order."""

    name: str
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        _require(bool(self.name), "table: the name is empty")
        _require(bool(self.segments), f"table {self.name}: it has no segments")

    @property
    def dim(self) -> int:
        """Floats of a row that a pull returns."""
        return sum(segment.dim for segment in self.segments)

    @property
    def layout(self) -> tuple[tuple[int, str], ...]:
        """Width and optimizer of each slice: what decides the shape of a row."""
        return tuple((segment.dim, type(segment.optimizer).__name__.lower()) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class VariableConfig:
    """A dense variable: where it starts and, if it takes gradients, how it moves."""

    name: str
    initial: NDArray[Any]
    optimizer: Optimizer | None = None

    def __post_init__(self) -> None:
        _require(bool(self.name), "variable: the name is empty")
        _require(
            self.initial.dtype in (np.float32, np.int64),
            f"variable {self.name}: dtype {self.initial.dtype} is neither float32 nor int64",
        )
        _require(bool(np.isfinite(self.initial).all()), f"variable {self.name}: the initial value is not finite")
        _require(
            self.optimizer is None or self.initial.dtype == np.float32,
            f"variable {self.name}: only float32 variables take gradients, this one is {self.initial.dtype}",
        )
