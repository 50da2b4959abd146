"""From an optimizer's settings to kernels, their parameters and the state of a row."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np

from megalith.engine.kernels import optimizers
from megalith.engine.kernels.optimizers import dc, hash_net, rounding
from megalith.engine.kernels.optimizers._rows import Fields
from megalith.engine.segments.optimizer_state import (
    StateField,
    check_step,
    initial_state,
    lay_out,
)
from megalith.engine.segments.retriever import hash_net_params
from megalith.errors import InvalidSetting, ShapeMismatch
from megalith.kernels.dtypes import F32, I64
from megalith.schema.compressors import Compressor, Fp16, Fp32, OneBit
from megalith.schema.dense_optimizers import DenseOptimizer
from megalith.schema.optimizers import Dc, Optimizer, StochasticRoundingFloat16

# (values, starts, w, s, grads, g, dim, lr, params, step), see kernels/optimizers/__init__.py
Apply = Callable[[F32, I64, int, int, F32, int, int, np.float32, F32, int], None]
_RAW = Fp32()


class OptimizerModule(Protocol):
    """A module of kernels/optimizers, which is called after the `name` of its schema class."""

    apply: Apply

    def params_of(self, settings: Any) -> list[float]: ...

    def state_of(self, settings: Any, dim: int) -> Fields: ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One kernel of an update with its parameters.

    `name` is that of its module in kernels/optimizers.
    """

    name: str
    apply: Apply
    params: F32


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """One segment's optimizer, ready to run.

    Its stages are applied in order; its fields are the state that a row keeps. `takes_pulled` says
    that gradients come with the weights they were computed on, in as many columns again.
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
        """Run the stages, see kernels/optimizers/__init__.py.

        Those before the optimizer itself overwrite `grads`.
        """
        columns = grads.shape[1]
        half = columns // 2

        if self.takes_pulled and (columns % 2 or g + dim > half):
            raise ShapeMismatch(
                f"{self.name}: {columns} columns cannot hold gradients and pulled weights "
                "side by side"
            )

        check_step(step)
        for stage in self.stages:
            stage.apply(values, starts, w, s, grads, g, dim, lr, stage.params, step)


def row_optimizer(optimizer: Optimizer, dim: int, compressor: Compressor = _RAW) -> RowOptimizer:
    """The optimizer of `dim` floats whose lookups show what `compressor` will store."""
    if dim < 1:
        raise InvalidSetting(f"{optimizer.name}: a segment of {dim} floats has nothing to optimize")

    row = _wrapped(optimizer, dim)
    if row.takes_pulled and not isinstance(compressor, Fp32 | Fp16):
        raise InvalidSetting(
            f"{row.name}: pulled weights of {compressor.name} segments are not the stored ones"
        )

    if isinstance(compressor, OneBit):
        params = hash_net_params(compressor)
        derivative = Stage("hash_net", hash_net.apply, params)
        return replace(row, stages=(derivative, *row.stages))

    return row


def _wrapped(optimizer: Optimizer, dim: int) -> RowOptimizer:
    match optimizer:
        case Dc(base, strength):
            row = _wrapped(base, dim)
            params = np.array([strength], np.float32)
            before = Stage("dc", dc.apply, params)
            return replace(
                row,
                name=f"dc({row.name})",
                stages=(before, *row.stages),
                takes_pulled=True,
            )

        case StochasticRoundingFloat16(base):
            row = _wrapped(base, dim)
            calls = np.zeros(1, np.float32)
            after = Stage("rounding", rounding.apply, calls)
            return replace(
                row,
                name=f"{optimizer.name}({row.name})",
                stages=(*row.stages, after),
            )

        case _:
            return plain_optimizer(optimizer, dim)


def plain_optimizer(optimizer: Optimizer | DenseOptimizer, dim: int) -> RowOptimizer:
    """An optimizer that wraps no other, by the kernel of its name."""
    if isinstance(optimizer, Optimizer):
        optimizer.check_dim(dim)

    found = import_module(f"{optimizers.__name__}.{optimizer.name}")
    module = cast(OptimizerModule, found)

    params = np.array(module.params_of(optimizer), np.float32)
    stage = Stage(optimizer.name, module.apply, params)

    state = module.state_of(optimizer, dim)
    return RowOptimizer(optimizer.name, (stage,), lay_out(state))
