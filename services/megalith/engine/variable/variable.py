"""One dense variable, or one part of a large one: an array that all workers share."""

import itertools
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.engine.segments.optimizer_state import check_step
from megalith.engine.variable.optimizer import dense_state
from megalith.errors import (
    DtypeMismatch,
    InvalidRequest,
    NonFiniteValue,
    ShapeMismatch,
    TableConflict,
)
from megalith.kernels.finite import is_finite
from megalith.schema import Shampoo, VariableConfig
from megalith.schema.variable_parts import VariableShape

logger = logging.getLogger(__name__)

_CHANGES = itertools.count(1)


class VariableValue(NamedTuple):
    """A copy of a whole value. No other value of any variable of the process has its `change`."""

    change: int
    value: NDArray[Any]


class UpdateKind(Enum):
    GRADIENT = "gradient"
    ADD = "add"
    ASSIGN = "assign"
    RAISE = "raise"


class Variable:
    """A value and its optimizer state. The lock guards both; a reader gets a copy of a whole value.

    An update whose result is not finite, or does not fit int64, is left out and counted: finite
    values stay finite, and counters do not wrap around.
    """

    def __init__(self, config: VariableConfig) -> None:
        self._lock = threading.Lock()
        self._config = config
        self.nonfinite = 0  # updates left out, those that overflow int64 too
        self._state = dense_state(config.optimizer, config.initial)
        self._change = next(_CHANGES)

    @property
    def change(self) -> int:
        """The number of the last change, which tells whether a value is still that of before."""
        return self._change

    @property
    def config(self) -> VariableConfig:
        return self._config

    @property
    def nbytes(self) -> int:
        fields = sum(field.nbytes for field in self._state.fields.values())
        return self._state.value.nbytes + fields

    @property
    def whole(self) -> VariableShape:
        """The variable that this is, or is a part of."""
        part = self._config.part
        value = self._state.value
        takes_gradients = self._config.optimizer is not None

        if part is None:
            return VariableShape(value.dtype, value.shape, 1, takes_gradients)

        shape = (part.rows, *value.shape[1:])
        return VariableShape(value.dtype, shape, part.count, takes_gradients)

    def reconfigure(self, config: VariableConfig) -> None:
        """Take new optimizer settings and keep the value."""
        self.check_layout(config)
        with self._lock:
            self._config = config

    def check_layout(self, config: VariableConfig) -> None:
        mine = _layout(self._config)
        theirs = _layout(config)
        if mine != theirs:
            raise TableConflict(
                f"variable {config.name} exists as {mine}, asked for {theirs}; use another name, "
                "or another model directory if the model has other inputs or layers than before"
            )

    def read(self) -> NDArray[Any]:
        with self._lock:
            return self._state.value.copy()

    def read_numbered(self) -> VariableValue:
        """The value, and the number of its last change."""
        with self._lock:
            return VariableValue(self._change, self._state.value.copy())

    def check(self, kind: UpdateKind, update: NDArray[Any], step: int = 0) -> None:
        """Raise what apply would refuse, changing nothing."""
        name = self._config.part_name
        value = self._state.value
        if update.shape != value.shape or update.dtype != value.dtype:
            error = ShapeMismatch if update.dtype == value.dtype else DtypeMismatch
            raise error(
                f"variable {name}: update is {update.dtype} {list(update.shape)}, "
                f"expected {value.dtype} {list(value.shape)}"
            )

        if kind is UpdateKind.GRADIENT:
            check_step(step)
            if self._config.optimizer is None:
                raise InvalidRequest(
                    f"variable {name} has no optimizer: it can be assigned, added to and raised, "
                    "but takes no gradients"
                )

        if not np.isfinite(update).all():
            raise NonFiniteValue(
                f"variable {name}: the update holds NaN or infinity; nothing was applied"
            )

    def apply(self, kind: UpdateKind, update: NDArray[Any], step: int = 0) -> NDArray[Any] | None:
        """Update; ADD and RAISE return the new value.

        `step` decides the learning rate of a gradient.

        A gradient or a summand that would overflow the value or the optimizer's state changes
        neither. It is too late to refuse it: other parts of the same push may have been applied.
        """
        self.check(kind, update, step)
        with self._lock, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._change = next(_CHANGES)
            value = self._state.value
            optimizer = self._config.optimizer
            match kind:
                case UpdateKind.ADD:
                    if value.dtype == np.int64 and _overflows(value, update):
                        self._count_left_out("does not fit 64 bits")
                    else:
                        with self._unless_not_finite():
                            value += update

                    return value.copy()

                case UpdateKind.RAISE:
                    np.maximum(value, update, out=value)
                    return value.copy()

                case UpdateKind.ASSIGN:
                    value[...] = update

                case UpdateKind.GRADIENT if optimizer is not None:
                    rate = self._config.learning_rate(step)
                    with self._unless_not_finite():
                        self._state.step(optimizer, update, rate, step)

        return None

    @contextmanager
    def _unless_not_finite(self) -> Iterator[None]:
        """What happens inside is undone if it fails, or if value or state are not finite after it.

        That is counted.
        """
        held = [self._state.value, *self._state.fields.values()]
        before = [array.copy() for array in held]
        is_sound = False
        try:
            yield
            is_sound = all(_is_finite(array) for array in held)
        finally:
            if not is_sound:
                for array, old in zip(held, before, strict=True):
                    array[...] = old

        if not is_sound:
            self._count_left_out("is not finite")

    def _count_left_out(self, why: str) -> None:
        self.nonfinite += 1
        if self.nonfinite == 1:
            logger.warning(
                "variable update left out: its result %s; more are only counted variable=%s",
                why,
                self._config.part_name,
            )

    def dump(self) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
        """(value, optimizer state by field), taken together."""
        with self._lock:
            value = self._state.value.copy()
            fields = {name: field.copy() for name, field in self._state.fields.items()}

        return value, fields

    def load(self, value: NDArray[Any], state: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `dump`; another shape or other fields are refused.

        A state that is not finite, as early versions saved it, begins anew: every gradient after it
        would be undone.
        """
        mine = {"value": self._state.value, **self._state.fields}
        theirs = {"value": value, **state}
        if _shapes(mine) != _shapes(theirs):
            raise ShapeMismatch(
                f"variable {self._config.part_name}: saved as {_shapes(theirs)}, "
                f"but it is held as {_shapes(mine)}"
            )

        if not _is_finite(value):
            logger.warning(
                "value is not finite, it learns nothing until it is assigned: variable=%s",
                self._config.part_name,
            )

        if not all(_is_finite(field) for field in state.values()):
            logger.warning(
                "optimizer state is not finite, it begins anew: variable=%s", self._config.part_name
            )
            fresh = dense_state(self._config.optimizer, self._config.initial)
            theirs |= fresh.fields

        with self._lock:
            self._change = next(_CHANGES)
            for name, array in mine.items():
                array[...] = theirs[name]


def _is_finite(array: NDArray[Any]) -> bool:
    if array.dtype != np.float32:
        return True  # a count of steps

    return bool(is_finite(array.reshape(-1)))


def _overflows(value: NDArray[np.int64], update: NDArray[np.int64]) -> bool:
    """Whether an element of the sum wraps around: then its sign is that of neither summand."""
    total = value + update
    both_differ = (value ^ total) & (update ^ total)
    return bool((both_differ < 0).any())


def _shapes(arrays: Mapping[str, NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (array.dtype.name, array.shape) for name, array in arrays.items()}


def _layout(config: VariableConfig) -> str:
    """What must stay for a value and its state to stay meaningful."""
    optimizer = config.optimizer
    moved = optimizer.name if optimizer else "no optimizer"

    if isinstance(optimizer, Shampoo):
        kept = optimizer.eigen_head + optimizer.eigen_tail
        moved += f" of {kept} eigenvalues"

    parts = ""
    if config.part:
        parts = f" in {config.part.count} parts of {config.part.rows} rows"

    dtype = config.initial.dtype
    shape = list(config.initial.shape)
    return f"{dtype} {shape}{parts} with {moved}"
