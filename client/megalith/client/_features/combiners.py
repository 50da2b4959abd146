"""How the rows of an example's ids become what the model sees."""

from dataclasses import dataclass
from typing import ClassVar

from megalith.schema.checks import check_count


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of the rows; zeros without ids."""

    name: ClassVar[str] = "sum"


@dataclass(frozen=True, slots=True)
class Mean:
    """The sum of the rows, each times 1/count.

    Zeros without ids (Monolith's stand-alone op gives NaN).
    """

    name: ClassVar[str] = "mean"


@dataclass(frozen=True, slots=True)
class FirstN:
    """The rows of the first `n` ids one after the other, then zeros.

    Further ids are neither read nor trained.
    """

    name: ClassVar[str] = "first_n"

    n: int

    def __post_init__(self) -> None:
        check_count(self, 1, "n")


@dataclass(frozen=True, slots=True)
class Sqrtn:
    """The square root of the sum of squares, column by column.

    It is a norm, not a sum over sqrt(count).
    """

    name: ClassVar[str] = "sqrtn"


Combiner = Sum | Mean | FirstN | Sqrtn
