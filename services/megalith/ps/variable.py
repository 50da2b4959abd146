"""One dense variable: a small array that all workers share."""

import threading
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.wire.errors import InvalidRequest, NonFiniteValue, ShapeMismatch, TableConflict
from megalith.wire.schema import Adagrad, Sgd, VariableConfig


class UpdateKind(Enum):
    GRADIENT = "gradient"
    ADD = "add"
    ASSIGN = "assign"


class Variable:
    """A value and its optimizer state. The lock guards both; a reader gets a copy of a whole value."""

    def __init__(self, config: VariableConfig) -> None:
        self._lock = threading.Lock()
        self._config = config
        self._value = config.initial.copy()
        self._state = _initial_state(config)

    @property
    def config(self) -> VariableConfig:
        return self._config

    @property
    def nbytes(self) -> int:
        return self._value.nbytes + self._state.nbytes

    def reconfigure(self, config: VariableConfig) -> None:
        """Take new optimizer settings and keep the value."""
        self.check_layout(config)
        with self._lock:
            self._config = config

    def check_layout(self, config: VariableConfig) -> None:
        mine, theirs = _layout(self._config), _layout(config)
        if mine != theirs:
            raise TableConflict(f"variable {config.name} exists as {mine}, asked for {theirs}; use another name")

    def read(self) -> NDArray[Any]:
        with self._lock:
            return self._value.copy()

    def check(self, kind: UpdateKind, update: NDArray[Any]) -> None:
        """Raise what apply would refuse, changing nothing."""
        name = self._config.name
        if update.shape != self._value.shape or update.dtype != self._value.dtype:
            raise ShapeMismatch(
                f"variable {name}: update is {update.dtype} {list(update.shape)}, "
                f"expected {self._value.dtype} {list(self._value.shape)}"
            )
        if kind is UpdateKind.GRADIENT and self._config.optimizer is None:
            raise InvalidRequest(f"variable {name} has no optimizer: it takes add and assign, not gradients")
        if not np.isfinite(update).all():
            raise NonFiniteValue(f"variable {name}: the update holds NaN or infinity; nothing was applied")

    def apply(self, kind: UpdateKind, update: NDArray[Any]) -> NDArray[Any]:
        """Update and return the new value."""
        self.check(kind, update)
        with self._lock:
            match kind:
                case UpdateKind.ADD:
                    self._value += update
                case UpdateKind.ASSIGN:
                    self._value[...] = update
                case UpdateKind.GRADIENT:
                    self._step(update)
            return self._value.copy()

    def dump(self) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """(value, optimizer state), taken together."""
        with self._lock:
            return self._value.copy(), self._state.copy()

    def load(self, value: NDArray[Any], state: NDArray[np.float32]) -> None:
        if value.shape != self._value.shape or state.shape != self._state.shape:
            raise ShapeMismatch(
                f"variable {self._config.name}: saved {list(value.shape)}, expected {self._value.shape}"
            )
        with self._lock:
            self._value[...], self._state[...] = value, state

    def _step(self, gradient: NDArray[Any]) -> None:
        match self._config.optimizer:
            case Sgd(learning_rate):
                self._value -= np.float32(learning_rate) * gradient
            case Adagrad(learning_rate, _, decay):
                gradient = gradient + np.float32(decay) * self._value
                self._state += gradient * gradient
                self._value -= np.float32(learning_rate) * gradient / np.sqrt(self._state)


def _initial_state(config: VariableConfig) -> NDArray[np.float32]:
    if isinstance(config.optimizer, Adagrad):
        return np.full(config.initial.shape, config.optimizer.initial_accumulator_value, np.float32)
    return np.empty((0,), np.float32)


def _layout(config: VariableConfig) -> tuple[str, list[int], str]:
    return config.initial.dtype.name, list(config.initial.shape), type(config.optimizer).__name__.lower()
