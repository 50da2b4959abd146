"""The dense optimizers: their settings, and what a step with a gradient `g` does to a variable `w`.

Sgd, Momentum, Adagrad and Adam move a variable as they move a row (`optimizers`); adam's powers
count its updates. The four here are for variables only. `lr` is the rate that the variable's
schedule gives at the step of the push; without a schedule it is `learning_rate`. `weight_decay` is
L2: g + weight_decay * w takes the place of g before anything else. State starts at zero. Everything
is float32.
"""

from dataclasses import dataclass
from typing import ClassVar

from megalith.schema.checks import check_above, check_at_least, check_count, check_fraction, require
from megalith.schema.optimizers import Adagrad, Adam, Momentum, Sgd


@dataclass(frozen=True, slots=True)
class Adamom:
    """w -= lr * m / sqrt(v/c + epsilon).

    m = mom_decay*m + (1-mom_decay)*g; v = ada_decay*v + g*g; c = ada_decay*c + 1.

    v/c is a weighted mean of all squared gradients so far. c is the same number for every element
    and is kept once.
    """

    name: ClassVar[str] = "adamom"
    warmup_steps: ClassVar[int] = 0

    learning_rate: float = 5e-6
    ada_decay: float = 0.9999
    mom_decay: float = 0.99
    epsilon: float = 1e-6
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_fraction(self, "ada_decay", "mom_decay")
        check_above(self, 0, "epsilon")
        check_at_least(self, 0, "weight_decay")


@dataclass(frozen=True, slots=True)
class DenseRmsprop:
    """v += (g*g - v)*(1-beta2); m = beta1*m + lr * g / sqrt(v + epsilon); w -= m.

    Not the algorithm of `Rmsprop`, which moves rows of a table, keeps no momentum and divides by
    sqrt(n) + 1.
    """

    name: ClassVar[str] = "dense_rmsprop"
    warmup_steps: ClassVar[int] = 0

    learning_rate: float = 5e-6
    beta1: float = 0.99
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_fraction(self, "beta1", "beta2")
        check_above(self, 0, "epsilon")
        check_at_least(self, 0, "weight_decay")


@dataclass(frozen=True, slots=True)
class DenseRmspropV2:
    """v = beta2*v + g*g; m = beta1*m + lr * g / (sqrt(v) + epsilon); w -= m."""

    name: ClassVar[str] = "dense_rmspropv2"
    warmup_steps: ClassVar[int] = 0

    learning_rate: float = 5e-6
    beta1: float = 0.99
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_fraction(self, "beta1", "beta2")
        check_above(self, 0, "epsilon")
        check_at_least(self, 0, "weight_decay")


@dataclass(frozen=True, slots=True)
class Shampoo:
    """Preconditions a gradient G along each of its axes, grafted on adagrad's length.

    For a matrix that is w -= lr * P0 G P1.

    For each axis i of the R axes, s_i gathers G G^T over all other axes, and P_i is s_i^(-1/2R),
    from the `eigen_head` smallest eigenvalues above `damping_epsilon` and the `eigen_tail` largest.
    m is the running mean (beta_1) of adagrad's steps, pm that of the preconditioned gradients; U1 =
    lr*m, U2 = lr * |m|/|pm| * pm. Up to step `warmup` U1 is taken, from twice as many steps on U2,
    and a blend in between.

    The statistics take a new sample every `tau_2` steps, the preconditioners are computed anew
    every `tau_1` steps. The step is the one that a push names (`Cluster.push(step=...)`): without
    it there is no end of the warm-up. With many workers no push may name just a multiple of tau;
    the first one beyond it counts then.

    A variable with this optimizer is never split over servers, because the statistics join all
    rows: it takes the same steps on any number of servers. An axis may have up to 4096 elements;
    its statistics take the square of that.

    Monolith fills the eigenvalues left out by the mean of the raw ones; here the mean of their
    powers is taken, since that is what they stand for. The two agree where no axis is longer than
    eigen_head + eigen_tail.
    """

    name: ClassVar[str] = "shampoo"
    warmup_steps: ClassVar[int] = 0

    learning_rate: float = 0.03
    beta_1: float = 0.9
    beta_2: float = 1.0
    warmup: int = 5000
    tau_1: int = 200
    tau_2: int = 20
    eigen_head: int = 100
    eigen_tail: int = 100
    damping_epsilon: float = 1e-3

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_above(self, 0, "damping_epsilon")
        check_count(self, 1, "warmup", "tau_1", "tau_2")

        check_fraction(self, "beta_1")
        check_at_least(self, 0, "beta_2")
        require(self.beta_2 <= 1, f"shampoo: beta_2 {self.beta_2!r} must be 1 or less")

        check_count(self, 0, "eigen_head", "eigen_tail")
        kept = self.eigen_head + self.eigen_tail
        require(kept > 0, "shampoo: eigen_head and eigen_tail are both 0")


DenseOptimizer = Sgd | Momentum | Adagrad | Adam | Adamom | DenseRmsprop | DenseRmspropV2 | Shampoo
