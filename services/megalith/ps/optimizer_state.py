"""What a row keeps for an optimizer: named fields, one after the other, in float32 slots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.ps.kernels.dtypes import F32
from megalith.ps.kernels.optimizers._rows import STEP_MASK, STEP_SHIFT
from megalith.wire.errors import InvalidRequest, ShapeMismatch

STEP_LIMIT = 1 << (2 * STEP_SHIFT)
NEVER = -1  # the step of an update that has not happened


@dataclass(frozen=True, slots=True)
class StateField:
    """One named part of a row's state, as dumps and checkpoints show it.

    `offset` and `width` count float32 slots. A step is one int64 to the outside and STEP_SLOTS slots inside.
    """

    name: str
    offset: int
    width: int
    initial: float
    is_step: bool = False


def lay_out(state: Sequence[tuple[str, int, float]]) -> tuple[StateField, ...]:
    """Fields from (name, width, initial value), in memory order; a name that ends in `_step` is a step."""
    fields: list[StateField] = []
    offset = 0
    for name, width, initial in state:
        fields.append(StateField(name, offset, width, initial, is_step=name.endswith("_step")))
        offset += width
    return tuple(fields)


def initial_state(fields: Sequence[StateField]) -> F32:
    """The slots of a new row."""
    state = np.empty(sum(field.width for field in fields), np.float32)
    for field in fields:
        part = slice(field.offset, field.offset + field.width)
        state[part] = pack_steps(np.array([field.initial], np.int64)) if field.is_step else field.initial
    return state


def dump_state(owner: str, fields: Sequence[StateField], state: F32) -> dict[str, NDArray[Any]]:
    """The slots of rows by field: [n, width] float32, or [n] int64 for a step."""
    width = sum(field.width for field in fields)
    if state.ndim != 2 or state.shape[1] != width:
        raise ShapeMismatch(f"{owner}: state of shape {state.shape}, but rows have {width} floats")
    parts = {field: state[:, field.offset : field.offset + field.width] for field in fields}
    return {field.name: unpack_steps(part) if field.is_step else part.copy() for field, part in parts.items()}


def load_state(owner: str, fields: Sequence[StateField], dump: Mapping[str, NDArray[Any]], rows: int) -> F32:
    """The inverse of `dump_state`; other fields or widths are a ShapeMismatch that names `owner`."""
    expected = {field.name for field in fields}
    if set(dump) != expected:
        raise ShapeMismatch(f"{owner}: state has fields {sorted(dump)}, but needs {sorted(expected)}")
    state = np.empty((rows, sum(field.width for field in fields)), np.float32)
    for field in fields:
        shape = (rows,) if field.is_step else (rows, field.width)
        if dump[field.name].shape != shape:
            raise ShapeMismatch(f"{owner}: {field.name} has shape {dump[field.name].shape}, but needs {shape}")
        part = pack_steps(dump[field.name]) if field.is_step else dump[field.name]
        state[:, field.offset : field.offset + field.width] = part
    return state


def check_step(step: int) -> None:
    """Raise unless `step` is one that an update can have and rows can keep."""
    if not 0 <= step < STEP_LIMIT:
        raise InvalidRequest(f"step {step} is outside 0..{STEP_LIMIT - 1}")


def pack_steps(steps: NDArray[np.int64]) -> F32:
    """[n] steps as [n, 2] float32, exactly: both halves are whole numbers below 2^24."""
    if steps.size and not (steps.min() >= NEVER and steps.max() < STEP_LIMIT):
        raise InvalidRequest(f"steps {steps.min()}..{steps.max()} are outside {NEVER}..{STEP_LIMIT - 1}")
    return np.stack([steps >> STEP_SHIFT, steps & STEP_MASK], axis=-1).astype(np.float32)


def unpack_steps(slots: F32) -> NDArray[np.int64]:
    """The inverse of `pack_steps`."""
    halves = slots.astype(np.int64)
    return np.asarray((halves[:, 0] << STEP_SHIFT) + halves[:, 1])
