"""Learning rates as pure functions of the global step.

Two schedules are equal when their classes and settings are: that is what decides whether slices share a segment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from megalith.wire.dense_optimizers import DenseOptimizer
from megalith.wire.optimizers import Optimizer
from megalith.wire.validation import check_above, check_at_least, check_count, check_flag, require


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
    """From 0 at step 0 in a straight line to `learning_rate` at step `warmup_steps`, then constant."""

    name: ClassVar[str] = "linear_warmup"

    learning_rate: float
    warmup_steps: int

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_count(self, 1, "warmup_steps")

    def at(self, step: int) -> float:
        return self.learning_rate * min(_checked(step), self.warmup_steps) / self.warmup_steps


@dataclass(frozen=True, slots=True)
class PolynomialDecay:
    """From the initial to the end rate over `decay_steps`, along (1 - step/decay_steps)^power.

    An end above the initial rate is a warm-up. With `cycle` the descent starts over from a longer run each time the
    step passes a multiple of `decay_steps`, instead of staying at the end rate.
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
            span = self.decay_steps * max(1, math.ceil(step / self.decay_steps))
        else:
            span, step = self.decay_steps, min(step, self.decay_steps)
        drop = self.initial_learning_rate - self.end_learning_rate
        return float(drop * (1 - step / span) ** self.power + self.end_learning_rate)


Schedule = Constant | LinearWarmup | PolynomialDecay


def default_schedule(optimizer: Optimizer | DenseOptimizer) -> Schedule:
    """The rate of what names no schedule: the optimizer's own, after its warm-up if it has one."""
    rate = optimizer.learning_rate
    return LinearWarmup(rate, optimizer.warmup_steps) if optimizer.warmup_steps else Constant(rate)


def learning_rates(schedules: Sequence[Schedule], step: int) -> NDArray[np.float32]:
    """One rate per segment, in order: what `apply_gradients` takes."""
    return np.array([schedule.at(step) for schedule in schedules], np.float32)


def _checked(step: int) -> int:
    require(step >= 0, f"schedule: step {step} is negative")
    return step
