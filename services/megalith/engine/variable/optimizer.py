"""A dense variable's value with what its optimizer keeps, and one step of the optimizer on both."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megalith.engine.segments.optimizer import RowOptimizer, plain_optimizer
from megalith.engine.variable.shampoo import ShampooState
from megalith.errors import InvalidRequest
from megalith.kernels.dtypes import F32
from megalith.schema import DenseOptimizer, Shampoo

# Fields that a variable has once, whatever its size
_ONCE = frozenset({"beta1_power", "beta2_power", "c"})
_START = np.zeros(1, np.int64)


class DenseState(Protocol):
    """A value and its optimizer's fields: live arrays, changed in place by `step`. Not thread-safe.

    A field either is a single number, of shape (), or, in a variable that may be split, has the
    shape of the value.
    """

    value: NDArray[Any]
    fields: Mapping[str, NDArray[Any]]

    def step(self, optimizer: DenseOptimizer, gradient: F32, rate: np.float32, step: int) -> None:
        """Move the value.

        The optimizer is of the kind that the state was made for, its settings may be new.
        """


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
    """A variable whose elements move by themselves.

    To the kernels it is one long row of a table.
    """

    def __init__(self, optimizer: DenseOptimizer, initial: F32) -> None:
        row = _elementwise(optimizer, initial.size)
        self._row = row
        self._settings = optimizer

        size = initial.size
        flat = initial.reshape(-1)
        self._buffer = np.concatenate([flat, row.initial_state])

        # Views of the buffer: the kernels move them all in one call.
        weights = self._buffer[:size]
        state = self._buffer[size:]
        self.value: NDArray[Any] = weights.reshape(initial.shape)

        fields = {}

        for field in row.fields:
            end = field.offset + field.width
            slots = state[field.offset : end]

            shape = () if field.name in _ONCE else initial.shape
            fields[field.name] = slots.reshape(shape)

        self.fields: Mapping[str, NDArray[Any]] = fields

    def step(self, optimizer: DenseOptimizer, gradient: F32, rate: np.float32, step: int) -> None:
        if optimizer != self._settings:
            self._row = _elementwise(optimizer, self.value.size)
            self._settings = optimizer

        size = self.value.size
        row = gradient.reshape(1, -1)
        self._row.apply(self._buffer, _START, 0, size, row, 0, size, rate, step)


def _elementwise(optimizer: DenseOptimizer, size: int) -> RowOptimizer:
    if isinstance(optimizer, Shampoo):
        raise InvalidRequest("shampoo moves a variable as a whole, not element by element")
    return plain_optimizer(optimizer, size)
