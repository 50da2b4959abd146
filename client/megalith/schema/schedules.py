"""Learning rates as pure functions of the global step.

Two schedules are equal when their classes and settings are: that is what decides whether slices
share a segment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from megalith.schema.checks import check_above, check_at_least, check_count, check_flag, require
from megalith.schema.dense_optimizers import DenseOptimizer
from megalith.schema.optimizers import Optimizer


@dataclass(frozen=True, slots=True)
class Constant:
    """The same rate at every step."""

    name: ClassVar[str] = "constant"

    learning_rate: float

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")

    def at(self, step: int) -> float:
        return self.learning_rate


@dataclass(frozen=True, slots=True)
class LinearWarmup:
    """From 0 in a straight line to `learning_rate` at step `warmup_steps`, then constant."""

    name: ClassVar[str] = "linear_warmup"

    learning_rate: float
    warmup_steps: int

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_count(self, 1, "warmup_steps")

    def at(self, step: int) -> float:
        done = min(_checked(step), self.warmup_steps)
        return self.learning_rate * done / self.warmup_steps


@dataclass(frozen=True, slots=True)
class PolynomialDecay:
    """From the initial to the end rate over `decay_steps`, along (1 - step/decay_steps)^power.

    An end above the initial rate is a warm-up. With `cycle` the descent starts over from a longer
    run each time the step passes a multiple of `decay_steps`, instead of staying at the end rate.
    """

    name: ClassVar[str] = "polynomial_decay"

    initial_learning_rate: float
    decay_steps: int
    end_learning_rate: float = 1e-4
    power: float = 1.0
    cycle: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, 0, "initial_learning_rate", "end_learning_rate")
        check_count(self, 1, "decay_steps")
        check_above(self, 0, "power")
        check_flag(self, "cycle")

    def at(self, step: int) -> float:
        _checked(step)

        if self.cycle:
            runs = math.ceil(step / self.decay_steps)
            span = self.decay_steps * max(1, runs)
        else:
            span = self.decay_steps
            step = min(step, self.decay_steps)

        drop = self.initial_learning_rate - self.end_learning_rate
        left = (1 - step / span) ** self.power
        return float(drop * left + self.end_learning_rate)


Schedule = Constant | LinearWarmup | PolynomialDecay


def default_schedule(optimizer: Optimizer | DenseOptimizer) -> Schedule:
    """The rate of what names no schedule: the optimizer's own, after its warm-up if it has one."""
    rate = optimizer.learning_rate
    if optimizer.warmup_steps:
        return LinearWarmup(rate, optimizer.warmup_steps)

    return Constant(rate)


def learning_rates(schedules: Sequence[Schedule], step: int) -> NDArray[np.float32]:
    """One rate per segment, in order: what `apply_gradients` takes."""
    rates = [schedule.at(step) for schedule in schedules]
    return np.array(rates, np.float32)


def _checked(step: int) -> int:
    require(step >= 0, f"schedule: step {step} is negative")
    return step
