"""What the embedding of a new row holds before its first update.

A lookup of an absent id reads zeros all the same.
"""

from dataclasses import dataclass
from typing import ClassVar

from megalith.schema.checks import check_finite, require


@dataclass(frozen=True, slots=True)
class Zeros:
    """A new row starts at zero."""

    name: ClassVar[str] = "zeros"


@dataclass(frozen=True, slots=True)
class Ones:
    """A new row starts at one."""

    name: ClassVar[str] = "ones"


@dataclass(frozen=True, slots=True)
class Constants:
    """A new row starts at `constant`."""

    name: ClassVar[str] = "constants"

    constant: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self, "constant")


@dataclass(frozen=True, slots=True)
class RandomUniform:
    """A new row starts uniform in [minval, maxval).

    The numbers depend on the table's seed, the id and the position in the row only: neither the
    order of ids nor the number of threads, servers or restarts changes where a row starts.
    (Monolith replays one sequence per thread.)
    """

    name: ClassVar[str] = "random_uniform"

    minval: float = -0.05
    maxval: float = 0.05

    def __post_init__(self) -> None:
        check_finite(self, "minval", "maxval")
        require(
            self.minval <= self.maxval,
            f"random_uniform: minval {self.minval} and maxval {self.maxval} must be finite and in "
            "order",
        )


Initializer = Zeros | Ones | Constants | RandomUniform
