"""A dense variable's value together with what its optimizer keeps, and one step of the optimizer on both."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megalith.ps.kernels.dtypes import F32
from megalith.ps.kernels.optimizers import adamom, dense_rmsprop, dense_rmspropv2
from megalith.ps.optimizer import RowOptimizer, Stage, row_optimizer
from megalith.ps.optimizer_state import lay_out
from megalith.ps.shampoo import ShampooState
from megalith.wire.errors import InvalidRequest
from megalith.wire.schema import (
    Adagrad,
    Adam,
    Adamom,
    DenseOptimizer,
    DenseRmsprop,
    DenseRmspropV2,
    Momentum,
    Sgd,
    Shampoo,
)

_ONCE = frozenset(
    {"beta1_power", "beta2_power", "c"}
)  # fields that a variable has once, whatever its size
_START = np.zeros(1, np.int64)


class DenseState(Protocol):
    """A value and its optimizer's fields: live arrays, changed in place by `step`. Not thread-safe.

    A field either is a single number, of shape (), or, in a variable that may be split, has the shape of the value.
    """

    value: NDArray[Any]
    fields: Mapping[str, NDArray[Any]]

    def step(self, optimizer: DenseOptimizer, gradient: F32, rate: np.float32, step: int) -> None:
        """Move the value; the optimizer is of the kind that the state was made for, its settings may be new."""


def dense_state(optimizer: DenseOptimizer | None, initial: NDArray[Any]) -> DenseState:
    """The state of a variable that has not moved yet."""
    match optimizer:
        case None:
            return FixedState(initial)
        case Shampoo():
            return ShampooState(optimizer, initial)
        case _:
            return ElementwiseState(optimizer, initial)


class FixedState:
    """A variable without an optimizer."""

    def __init__(self, initial: NDArray[Any]) -> None:
        self.value: NDArray[Any] = initial.copy()
        self.fields: Mapping[str, NDArray[Any]] = {}

    def step(self, optimizer: DenseOptimizer, gradient: F32, rate: np.float32, step: int) -> None:
        raise InvalidRequest("a variable without an optimizer takes no gradients")


class ElementwiseState:
    """A variable whose elements move by themselves: to the kernels it is one long row of a table."""

    def __init__(self, optimizer: DenseOptimizer, initial: F32) -> None:
        row = _row_optimizer(optimizer, initial.size)
        self._row, self._settings = row, optimizer
        self._buffer = np.concatenate([initial.reshape(-1), row.initial_state])
        self.value: NDArray[Any] = self._buffer[: initial.size].reshape(initial.shape)
        state = self._buffer[initial.size :]
        self.fields: Mapping[str, NDArray[Any]] = {
            field.name: state[field.offset : field.offset + field.width].reshape(
                () if field.name in _ONCE else initial.shape
            )
            for field in row.fields
        }

    def step(self, optimizer: DenseOptimizer, gradient: F32, rate: np.float32, step: int) -> None:
        if optimizer != self._settings:
            self._row, self._settings = _row_optimizer(optimizer, self.value.size), optimizer
        size = self.value.size
        self._row.apply(self._buffer, _START, 0, size, gradient.reshape(1, -1), 0, size, rate, step)


def _row_optimizer(optimizer: DenseOptimizer, size: int) -> RowOptimizer:
    match optimizer:
        case Sgd() | Momentum() | Adagrad() | Adam():
            return row_optimizer(optimizer, size)
        case Adamom(_, ada, mom, epsilon, decay):
            stage = Stage(
                optimizer.name, adamom.apply, np.array([ada, mom, epsilon, decay], np.float32)
            )
            return RowOptimizer(
                optimizer.name, (stage,), lay_out([("m", size, 0), ("v", size, 0), ("c", 1, 0)])
            )
        case DenseRmsprop(_, beta1, beta2, epsilon, decay) | DenseRmspropV2(
            _, beta1, beta2, epsilon, decay
        ):
            apply = (
                dense_rmsprop.apply
                if isinstance(optimizer, DenseRmsprop)
                else dense_rmspropv2.apply
            )
            stage = Stage(
                optimizer.name, apply, np.array([beta1, beta2, epsilon, decay], np.float32)
            )
            return RowOptimizer(optimizer.name, (stage,), lay_out([("m", size, 0), ("v", size, 0)]))
        case Shampoo():
            raise InvalidRequest("shampoo moves a variable as a whole, not element by element")
