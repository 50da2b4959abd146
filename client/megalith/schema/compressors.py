"""How a segment is stored in a serving row, and what a training lookup of it pretends in advance.

A model trained with `FixedR8` or `OneBit` reads its own rows through the same coarse values that
serving will show, so that the two agree; the stored weights stay full float32. `Fp32` and `Fp16`
change nothing in training.
"""

from dataclasses import dataclass
from typing import ClassVar

from megalith.schema.checks import check_above, check_count


@dataclass(frozen=True, slots=True)
class Fp32:
    """4 bytes a value: the weights as they are."""

    name: ClassVar[str] = "fp32"


@dataclass(frozen=True, slots=True)
class Fp16:
    """2 bytes a value: IEEE binary16, nearest even; beyond 65504 infinity."""

    name: ClassVar[str] = "fp16"


@dataclass(frozen=True, slots=True)
class FixedR8:
    """1 byte a value: multiples of r/128 in [-r, r), halves away from zero, NaN as 0."""

    name: ClassVar[str] = "fixed_r8"

    r: float = 1.0

    def __post_init__(self) -> None:
        check_above(self, 0, "r")


@dataclass(frozen=True, slots=True)
class OneBit:
    """1 byte a value (not packed): +amplitude or -amplitude, zero counting as negative.

    In training a lookup reads amplitude * tanh(scale * w) and the gradient is multiplied by its
    derivative (HashNet). The scale grows with the step, init_scale * sqrt(1 + 0.005 * step) up to
    max_scale, in stairs of `step_size` steps. Monolith's Python wrapper passes amplitude 0.05.
    """

    name: ClassVar[str] = "one_bit"

    step_size: int = 200
    init_scale: float = 1.0
    max_scale: float = 10000.0
    amplitude: float = 0.1

    def __post_init__(self) -> None:
        check_count(self, 1, "step_size")
        check_above(self, 0, "init_scale", "max_scale", "amplitude")


Compressor = Fp32 | Fp16 | FixedR8 | OneBit
