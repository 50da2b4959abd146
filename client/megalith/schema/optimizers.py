"""The sparse optimizers: their settings, and what a step does to a segment `w` of a row.

`g` is the gradient of the step.

`learning_rate` and `warmup_steps` describe the segment's schedule when it names none
(`schedules.default_schedule`); `lr` below is the rate that the schedule gives at the step of the
update. `weight_decay_factor` is L2: g + factor * w takes the place of g before anything else. State
is per row and per segment. Formulas are element-wise, in float32, unless they say otherwise.

Settings that Monolith parses and ignores (hessian_compression_times, use_beta1_warmup) do not
exist here: an unknown setting is an error, not a silence.
"""

from dataclasses import dataclass
from typing import ClassVar

from megalith.schema.checks import (
    check_above,
    check_at_least,
    check_count,
    check_flag,
    check_fraction,
    check_kind,
    require,
)

# What a program writes down in a segment; megalith.schema and megalith.client hand it on.
__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "Amsgrad",
    "BatchSoftmax",
    "Dc",
    "DynamicWdAdagrad",
    "Ftrl",
    "GroupAdagrad",
    "GroupFtrl",
    "Momentum",
    "MovingAverage",
    "Rmsprop",
    "RmspropV2",
    "Sgd",
    "StochasticRoundingFloat16",
]


class Optimizer:
    """Moves the rows of a table. A subclass is known by its `name` from its definition on.

    That is the name of its case in protos/table.proto, which has the same settings, and of its
    module in the engine's kernels/optimizers.
    """

    __slots__ = ()

    kinds: ClassVar[dict[str, type["Optimizer"]]] = {}  # all subclasses, by their names
    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        # A dataclass with slots is made twice. The second class, which everybody uses, takes the
        # place of the first one here.
        cls.kinds[cls.name] = cls

    @property
    def learning_rate(self) -> float:
        """The rate of a segment without a schedule of its own, after the warm-up."""
        raise NotImplementedError

    @property
    def warmup_steps(self) -> int:
        """Steps in which that rate grows from 0."""
        raise NotImplementedError

    def check_dim(self, dim: int) -> None:
        """InvalidSetting if it cannot move a segment of `dim` floats."""


@dataclass(frozen=True, slots=True)
class Sgd(Optimizer):
    """w -= lr * g."""

    name: ClassVar[str] = "sgd"

    learning_rate: float = 0.01
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class Adagrad(Optimizer):
    """norm += g*g; w -= lr * g / sqrt(norm), with g + weight_decay_factor * w in place of g.

    Departure: in full blocks of 8 Monolith steps along the raw gradient even with weight
    decay; here every element follows the formula. The two agree without weight decay.
    """

    name: ClassVar[str] = "adagrad"

    learning_rate: float = 0.001
    initial_accumulator_value: float = 0.1
    weight_decay_factor: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_above(self, 0, "initial_accumulator_value")
        check_at_least(self, 0, "weight_decay_factor")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class DynamicWdAdagrad(Optimizer):
    """Adagrad whose weight decay can act on the weights directly and follow how rare an id is.

    Coupled, the decay is part of the gradient, as in `Adagrad`. With `decouple_weight_decay` it
    stays out of the accumulator and shrinks the weights by itself: w -= lr * g / sqrt(norm) + lr *
    wd * w.

    With `enable_dynamic_wd`, wd is weight_decay_factor * gap^(1/temperature), where gap is the
    number of steps since the row's previous update (1 for its first): a row seen every k-th step
    decays as much as one seen at every step. `flip_direction` takes the exponent -1/temperature
    instead: rare ids, whose few updates carry all that is known about them, decay less. A decoupled
    shrink stops at zero, however long the gap.

    Monolith declares these settings and implements none of the dynamic ones; its Python
    wrapper asks for decoupled, dynamic and flipped, while the defaults here are the plain ones of
    its configuration.
    """

    name: ClassVar[str] = "dynamic_wd_adagrad"

    learning_rate: float = 0.001
    initial_accumulator_value: float = 0.1
    weight_decay_factor: float = 0.0
    decouple_weight_decay: bool = False
    enable_dynamic_wd: bool = False
    dynamic_wd_temperature: float = 1.0
    flip_direction: bool = False
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_above(self, 0, "initial_accumulator_value", "dynamic_wd_temperature")
        check_at_least(self, 0, "weight_decay_factor")
        check_flag(self, "decouple_weight_decay", "enable_dynamic_wd", "flip_direction")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class Ftrl(Optimizer):
    """Follow the regularized leader, per coordinate.

    zero += g - (sqrt(norm + g*g) - sqrt(norm)) / lr * w; norm += g*g; then w = 0 where |zero| <=
    l1, and lr * (sign(zero)*l1 - zero) / (sqrt(norm) + beta + l2*lr) elsewhere.

    Departures: Monolith takes the sign *bit* (0 or 1) for the sign, so l1 leaves positive
    `zero` unshrunk and pushes negative ones outward; `sign_bit_l1` gives its numbers. A step at lr
    = 0 (the first of a warm-up), where Monolith divides by zero and spoils the row, is
    skipped.
    """

    name: ClassVar[str] = "ftrl"

    learning_rate: float = 0.01
    beta: float = 0.0
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    sign_bit_l1: bool = False
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_at_least(
            self,
            0,
            "beta",
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
        )

        check_flag(self, "sign_bit_l1")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class GroupFtrl(Optimizer):
    """FTRL that keeps or drops a segment as a whole.

    `zero` and `norm` move as in `Ftrl`; with Z the length of the vector `zero`, w = 0 if Z < l1,
    and otherwise lr * zero * (l1 - Z) / Z / (beta + sqrt(norm) + l2*lr). Monolith never
    finished it. A step at lr = 0 is skipped, and Z = 0 gives w = 0.
    """

    name: ClassVar[str] = "group_ftrl"

    learning_rate: float = 0.01
    beta: float = 1.0
    initial_accumulator_value: float = 0.0
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_at_least(
            self,
            0,
            "beta",
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
        )

        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class GroupAdagrad(Optimizer):
    """Adagrad with one accumulator for a whole segment, and a group lasso that can drop it.

    S += max(g*g); L = lr / (beta + sqrt(S)); z = g - w/L, of length Z; w = 0 if Z < l2, else -L *
    (Z - l2)/Z * z.

    Departures: a step at lr = 0 is skipped, and Z = 0 gives w = 0; Monolith yields NaN in
    both.
    """

    name: ClassVar[str] = "group_adagrad"

    learning_rate: float = 0.01
    beta: float = 0.0
    initial_accumulator_value: float = 0.1
    l2_regularization_strength: float = 0.0
    weight_decay_factor: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_at_least(
            self,
            0,
            "beta",
            "initial_accumulator_value",
            "l2_regularization_strength",
            "weight_decay_factor",
        )

        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class Adadelta(Optimizer):
    """Steps scaled by the ratio of two running means, of squared steps and of squared gradients.

    accum = r*accum + (1-r)*g*g; u = sqrt(accum_update + e) / sqrt(accum + e) * g; w -= lr*u;
    accum_update = r*accum_update + (1-r)*u*u.
    """

    name: ClassVar[str] = "adadelta"

    learning_rate: float = 0.01
    weight_decay_factor: float = 0.0
    averaging_ratio: float = 0.9
    epsilon: float = 0.01
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_at_least(self, 0, "weight_decay_factor")
        check_fraction(self, "averaging_ratio")
        check_above(self, 0, "epsilon")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """m += (g - m)*(1-beta1); v += (g*g - v)*(1-beta2); w -= L * m / (sqrt(v) + epsilon).

    L = lr * sqrt(1 - beta2_power) / (1 - beta1_power). The powers live in the row, so the bias
    correction counts the updates of that row. `use_nesterov` steps along g*(1-beta1) + beta1*m
    instead of m.

    Departure: a restored row continues exactly; Monolith mixes up the two powers.
    """

    name: ClassVar[str] = "adam"

    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    epsilon: float = 0.01
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_fraction(self, "beta1", "beta2")
        check_at_least(self, 0, "weight_decay_factor")
        check_flag(self, "use_nesterov")
        check_above(self, 0, "epsilon")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class Amsgrad(Optimizer):
    """Adam that divides by the largest v a row has had (vhat).

    So a step never grows by forgetting.
    """

    name: ClassVar[str] = "amsgrad"

    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    epsilon: float = 0.01
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_fraction(self, "beta1", "beta2")
        check_at_least(self, 0, "weight_decay_factor")
        check_flag(self, "use_nesterov")
        check_above(self, 0, "epsilon")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class Momentum(Optimizer):
    """n' = momentum*n - lr*g; w += n', or with `use_nesterov` w += (1+momentum)*n' - momentum*n."""

    name: ClassVar[str] = "momentum"

    learning_rate: float = 0.01
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    momentum: float = 0.9
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_at_least(self, 0, "weight_decay_factor")
        check_flag(self, "use_nesterov")
        check_fraction(self, "momentum")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class MovingAverage(Optimizer):
    """w = momentum*w + (1-momentum)*g: the "gradient" is an observed value.

    There is no learning rate.
    """

    name: ClassVar[str] = "moving_average"
    learning_rate: ClassVar[float] = 0.0
    warmup_steps: ClassVar[int] = 0

    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_fraction(self, "momentum")


@dataclass(frozen=True, slots=True)
class BatchSoftmax(Optimizer):
    """The mean number of steps between two updates of a row.

    w = (1-lr)*w + lr*(step - last_step); g is ignored.

    Only for segments of dim 1. 1/w estimates the probability that a step samples the item. The step
    counts whatever wraps this optimizer; Monolith's wrappers pass 0.
    """

    name: ClassVar[str] = "batch_softmax"

    learning_rate: float = 0.1
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_count(self, 0, "warmup_steps")

    def check_dim(self, dim: int) -> None:
        require(
            dim == 1,
            f"batch_softmax: the segment has {dim} floats, but it estimates one number",
        )


@dataclass(frozen=True, slots=True)
class Rmsprop(Optimizer):
    """n = momentum*n + (1-momentum)*g*g; w -= lr / (sqrt(n) + 1) * g.

    It computes in float64 and rounds what it stores.

    Departure: lr is the segment's rate at the step; Monolith ignores it and uses the
    configured number.
    """

    name: ClassVar[str] = "rmsprop"

    learning_rate: float = 0.01
    weight_decay_factor: float = 0.0
    momentum: float = 0.9
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_at_least(self, 0, "weight_decay_factor")
        check_fraction(self, "momentum")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class RmspropV2(Optimizer):
    """Rmsprop with a decaying sum in place of the mean: n = momentum*n + g*g."""

    name: ClassVar[str] = "rmspropv2"

    learning_rate: float = 0.01
    weight_decay_factor: float = 0.0
    momentum: float = 0.9
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate")
        check_at_least(self, 0, "weight_decay_factor")
        check_fraction(self, "momentum")
        check_count(self, 0, "warmup_steps")


@dataclass(frozen=True, slots=True)
class Dc(Optimizer):
    """Delay compensation around another optimizer, for gradients that arrive late.

    The base steps along g + lambda_ * g*g * (w - pulled), a first-order estimate of the gradient at
    the present w from the one at `pulled`, the weights it was computed on. So a table with a dc
    segment takes gradients of twice its width: [gradients of all segments | weights that all
    segments had when they were pulled]. An id that occurs twice in one call is compensated against
    the weights before the call both times. Monolith never finished it.
    """

    name: ClassVar[str] = "dc"

    base: Optimizer
    lambda_: float = 0.0

    def __post_init__(self) -> None:
        check_kind("dc", "base", self.base, Optimizer)
        require(
            not isinstance(self.base, Dc | StochasticRoundingFloat16),
            f"dc: the base {self.base.name} is itself a wrapper; wrap a plain optimizer",
        )

        check_at_least(self, 0, "lambda_")

    @property
    def learning_rate(self) -> float:
        return self.base.learning_rate

    @property
    def warmup_steps(self) -> int:
        return self.base.warmup_steps


@dataclass(frozen=True, slots=True)
class StochasticRoundingFloat16(Optimizer):
    """Another optimizer's step, after which each weight is one of the two nearest binary16 values.

    A weight between two halves goes up with the probability of its distance from the lower one, so
    that small steps add up instead of vanishing; a half stays as it is. An id that occurs twice in
    one call is rounded once, after its last step.

    Departures: only this segment is rounded, where Monolith rounds the rest of the row as
    well, and a weight beyond the largest half becomes +-65504, never infinity.
    """

    name: ClassVar[str] = "stochastic_rounding_float16"

    base: Optimizer

    def __post_init__(self) -> None:
        check_kind("stochastic_rounding_float16", "base", self.base, Optimizer)
        require(
            not isinstance(self.base, StochasticRoundingFloat16),
            "stochastic_rounding_float16: the base is rounded already",
        )

    @property
    def learning_rate(self) -> float:
        return self.base.learning_rate

    @property
    def warmup_steps(self) -> int:
        return self.base.warmup_steps
