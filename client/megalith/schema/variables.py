"""What a dense variable is: where it starts and how it moves."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.schema.checks import check_kind, kinds_of, require
from megalith.schema.dense_optimizers import DenseOptimizer, Shampoo
from megalith.schema.schedules import Schedule, default_schedule
from megalith.schema.variable_parts import Part, is_part_name, num_parts, part_name, parts_of

_MAX_SHAMPOO_EXTENT = 4096  # two matrices of 64 MB, and an eigenvalue problem of minutes beyond it


@dataclass(frozen=True, slots=True)
class VariableConfig:
    """A dense variable: where it starts and, if it takes gradients, how it moves."""

    name: str
    initial: NDArray[Any]
    optimizer: DenseOptimizer | None = None
    schedule: Schedule | None = None  # None: the optimizer's own learning rate, after its warm-up
    # Which rows of the variable `initial` holds; None: all. Set by `split`
    part: Part | None = None

    def __post_init__(self) -> None:
        require(isinstance(self.name, str), f"variable: the name {self.name!r} is no text")
        require(bool(self.name), "variable: the name is empty")

        self._require(
            not is_part_name(self.name),
            "a name that ends in @<n>/<n> means a part of one",
        )

        self._check_initial()
        check_kind(f"variable {self.name}", "schedule", self.schedule, Schedule | None)

        if self.part is not None:
            self._check_part(self.part)

        if self.optimizer is not None:
            self._check_optimizer(self.optimizer)

    @property
    def part_name(self) -> str:
        """How requests name it."""
        return part_name(self.name, self.part)

    def learning_rate(self, step: int) -> np.float32:
        """What a gradient at `step` is multiplied by; 0 without an optimizer."""
        if self.optimizer is None:
            return np.float32(0)

        schedule = self.schedule or default_schedule(self.optimizer)
        return np.float32(schedule.at(step))

    def split(self, num_ps: int) -> list["VariableConfig"]:
        """The parts that `num_ps` servers hold, in order.

        Shampoo, whose steps join all rows, stays whole.
        """
        count = num_parts(self.initial.shape, self.initial.itemsize, num_ps)
        if count == 1 or isinstance(self.optimizer, Shampoo):
            return [self]

        parts = []

        for part in parts_of(len(self.initial), count):
            assert part is not None  # a variable of several parts
            rows = self.initial[part.start : part.stop]
            parts.append(VariableConfig(self.name, rows, self.optimizer, self.schedule, part))

        return parts

    def _check_initial(self) -> None:
        is_array = isinstance(self.initial, np.ndarray)
        self._require(
            is_array and self.initial.dtype in (np.float32, np.int64),
            f"the initial value is {_described(self.initial)}, not an array of float32 or int64",
        )

        is_finite = np.isfinite(self.initial).all()
        self._require(bool(is_finite), "the initial value is not finite")

    def _check_part(self, part: Part) -> None:
        extent = self.initial.shape[0] if self.initial.ndim else 0
        rows = part.stop - part.start
        self._require(
            extent == rows,
            f"part {part.index} of {part.count} has {extent} rows, not {rows}",
        )

        self._require(
            not isinstance(self.optimizer, Shampoo),
            "shampoo does not work on parts",
        )

    def _check_optimizer(self, optimizer: DenseOptimizer) -> None:
        *others, last = (kind.__name__ for kind in kinds_of(DenseOptimizer))
        most = ", ".join(others)
        known = f"{most} or {last}"
        self._require(
            isinstance(optimizer, DenseOptimizer),
            f"{_described(optimizer)} moves rows of a table; a variable takes {known}",
        )

        takes_gradients = self.initial.dtype == np.float32 and self.initial.size > 0
        self._require(
            takes_gradients,
            "only float32 variables with elements take gradients, "
            f"this one is {_described(self.initial)}",
        )

        if isinstance(optimizer, Shampoo):
            shape = list(self.initial.shape)
            self._require(
                max(shape, default=0) <= _MAX_SHAMPOO_EXTENT,
                f"shampoo takes axes of up to {_MAX_SHAMPOO_EXTENT}, the shape is {shape}",
            )

    def _require(self, condition: bool, message: str) -> None:
        require(condition, f"variable {self.name}: {message}")


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {list(value.shape)}"
    return type(value).__name__
