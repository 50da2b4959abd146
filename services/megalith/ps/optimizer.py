"""From an optimizer's settings to what a table needs of it: kernels, their parameters and the state of a row."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.kernels.optimizers import (
    adadelta,
    adagrad,
    adam,
    amsgrad,
    batch_softmax,
    dc,
    dynamic_wd_adagrad,
    ftrl,
    group_adagrad,
    group_ftrl,
    hash_net,
    momentum,
    moving_average,
    rmsprop,
    rmspropv2,
    rounding,
    sgd,
)
from megalith.ps.kernels.optimizers._rows import STEP_SLOTS
from megalith.ps.optimizer_state import NEVER, StateField, check_step, initial_state, lay_out
from megalith.ps.retriever import hash_net_params
from megalith.wire.compressors import Compressor, Fp16, Fp32, OneBit
from megalith.wire.errors import InvalidSetting, ShapeMismatch
from megalith.wire.optimizers import (
    Adadelta,
    Adagrad,
    Adam,
    Amsgrad,
    BatchSoftmax,
    Dc,
    DynamicWdAdagrad,
    Ftrl,
    GroupAdagrad,
    GroupFtrl,
    Momentum,
    MovingAverage,
    Optimizer,
    PlainOptimizer,
    Rmsprop,
    RmspropV2,
    Sgd,
    StochasticRoundingFloat16,
)

# (values, starts, w, s, grads, g, dim, lr, params, step), see kernels/optimizers/__init__.py
Apply = Callable[[F32, I64, int, int, F32, int, int, np.float32, F32, int], None]
_RAW = Fp32()


@dataclass(frozen=True, slots=True)
class Stage:
    """One kernel of an update with its parameters; `name` is that of its module in kernels/optimizers."""

    name: str
    apply: Apply
    params: F32


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """One segment's optimizer, ready to run: stages that are applied in order, and the state that a row keeps.

    `takes_pulled` says that gradients come with the weights they were computed on, in as many columns again.
    """

    name: str
    stages: tuple[Stage, ...]
    fields: tuple[StateField, ...]
    takes_pulled: bool = False

    @property
    def state_width(self) -> int:
        """Float32 slots that a row keeps for this segment."""
        return sum(field.width for field in self.fields)

    @property
    def initial_state(self) -> F32:
        """What those slots hold in a new row."""
        return initial_state(self.fields)

    def apply(
        self,
        values: F32,
        starts: I64,
        w: int,
        s: int,
        grads: F32,
        g: int,
        dim: int,
        lr: np.float32,
        step: int,
    ) -> None:
        """Run the stages, see kernels/optimizers/__init__.py. Those before the optimizer itself overwrite `grads`."""
        if self.takes_pulled and (grads.shape[1] % 2 or g + dim > grads.shape[1] // 2):
            raise ShapeMismatch(
                f"{self.name}: {grads.shape[1]} columns cannot hold gradients and pulled weights side by side"
            )
        check_step(step)
        for stage in self.stages:
            stage.apply(values, starts, w, s, grads, g, dim, lr, stage.params, step)


def row_optimizer(optimizer: Optimizer, dim: int, compressor: Compressor = _RAW) -> RowOptimizer:
    """The optimizer of a segment of `dim` floats whose lookups show what `compressor` will store."""
    if dim < 1:
        raise InvalidSetting(f"{optimizer.name}: a segment of {dim} floats has nothing to optimize")
    row = _wrapped(optimizer, dim)
    if row.takes_pulled and not isinstance(compressor, Fp32 | Fp16):
        raise InvalidSetting(
            f"{row.name}: pulled weights of {compressor.name} segments are not the stored ones"
        )
    if isinstance(compressor, OneBit):
        derivative = Stage("hash_net", hash_net.apply, hash_net_params(compressor))
        return replace(row, stages=(derivative, *row.stages))
    return row


def _wrapped(optimizer: Optimizer, dim: int) -> RowOptimizer:
    match optimizer:
        case Dc(base, strength):
            row = _wrapped(base, dim)
            before = Stage("dc", dc.apply, np.array([strength], np.float32))
            return replace(
                row, name=f"dc({row.name})", stages=(before, *row.stages), takes_pulled=True
            )
        case StochasticRoundingFloat16(base):
            row = _wrapped(base, dim)
            after = Stage("rounding", rounding.apply, np.zeros(1, np.float32))
            return replace(row, name=f"{optimizer.name}({row.name})", stages=(*row.stages, after))
        case _:
            return _plain(optimizer, dim)


def _plain(optimizer: PlainOptimizer, dim: int) -> RowOptimizer:
    match optimizer:
        case Sgd():
            return _build(optimizer, sgd.apply, [], [])
        case Adagrad(_, initial, decay):
            return _build(optimizer, adagrad.apply, [decay], [("norm", dim, initial)])
        case DynamicWdAdagrad(_, initial, decay, decoupled, dynamic, temperature, flipped):
            exponent = (-1 if flipped else 1) / temperature if dynamic else 0.0
            params = [decay, float(decoupled), exponent]
            state = [("norm", dim, initial), ("last_update_step", STEP_SLOTS, NEVER)]
            return _build(optimizer, dynamic_wd_adagrad.apply, params, state)
        case Ftrl(_, beta, initial, l1, l2, sign_bit):
            shifts = [l1, 0.0] if sign_bit else [-l1, l1]
            state = [("norm", dim, initial), ("zero", dim, 0.0)]
            return _build(optimizer, ftrl.apply, [beta, l1, l2, *shifts], state)
        case GroupFtrl(_, beta, initial, l1, l2):
            state = [("norm", dim, initial), ("zero", dim, 0.0)]
            return _build(optimizer, group_ftrl.apply, [beta, l1, l2], state)
        case GroupAdagrad(_, beta, initial, l2, decay):
            return _build(
                optimizer, group_adagrad.apply, [beta, l2, decay], [("grad_square_sum", 1, initial)]
            )
        case Adadelta(_, decay, ratio, epsilon):
            state = [("accum", dim, 0.0), ("accum_update", dim, 0.0)]
            return _build(optimizer, adadelta.apply, [decay, ratio, epsilon], state)
        case Adam(_, beta1, beta2, decay, nesterov, epsilon):
            params = [beta1, beta2, decay, epsilon, float(nesterov)]
            state = [
                ("m", dim, 0.0),
                ("v", dim, 0.0),
                ("beta1_power", 1, beta1),
                ("beta2_power", 1, beta2),
            ]
            return _build(optimizer, adam.apply, params, state)
        case Amsgrad(_, beta1, beta2, decay, nesterov, epsilon):
            params = [beta1, beta2, decay, epsilon, float(nesterov)]
            moments = [("m", dim, 0.0), ("v", dim, 0.0), ("vhat", dim, 0.0)]
            return _build(
                optimizer,
                amsgrad.apply,
                params,
                [*moments, ("beta1_power", 1, beta1), ("beta2_power", 1, beta2)],
            )
        case Momentum(_, decay, nesterov, rate):
            return _build(
                optimizer, momentum.apply, [decay, rate, float(nesterov)], [("n", dim, 0.0)]
            )
        case MovingAverage(rate):
            return _build(optimizer, moving_average.apply, [rate], [])
        case BatchSoftmax():
            if dim != 1:
                raise InvalidSetting(
                    f"batch_softmax: the segment has {dim} floats, but it estimates one number"
                )
            return _build(optimizer, batch_softmax.apply, [], [("last_step", STEP_SLOTS, 0)])
        case Rmsprop(_, decay, rate):
            return _build(optimizer, rmsprop.apply, [decay, rate], [("n", dim, 0.0)])
        case RmspropV2(_, decay, rate):
            return _build(optimizer, rmspropv2.apply, [decay, rate], [("n", dim, 0.0)])


def _build(
    optimizer: PlainOptimizer,
    apply: Apply,
    params: list[float],
    state: list[tuple[str, int, float]],
) -> RowOptimizer:
    stage = Stage(optimizer.name, apply, np.array(params, np.float32))
    return RowOptimizer(optimizer.name, (stage,), lay_out(state))
