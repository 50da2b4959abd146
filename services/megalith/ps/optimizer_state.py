"""What a row keeps for an optimizer: named fields, one after the other, in float32 slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.ps.kernels.dtypes import F32
from megalith.ps.kernels.optimizers._rows import STEP_MASK, STEP_SHIFT
from megalith.wire.errors import InvalidRequest

STEP_LIMIT = 1 << (2 * STEP_SHIFT)
NEVER = -1  # the step of an update that has not happened


@dataclass(frozen=True, slots=True)
class StateField:
    """One named part of a row's state.

    `offset` and `width` count float32 slots. A step is an int64 that takes STEP_SLOTS of them.
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
        state[part] = (
            pack_steps(np.array([field.initial], np.int64)) if field.is_step else field.initial
        )
    return state


def check_step(step: int) -> None:
    """Raise unless `step` is one that an update can have and rows can keep."""
    if not 0 <= step < STEP_LIMIT:
        raise InvalidRequest(f"step {step} is outside 0..{STEP_LIMIT - 1}")


def pack_steps(steps: NDArray[np.int64]) -> F32:
    """[n] steps as [n, 2] float32, exactly: both halves are whole numbers below 2^24."""
    if steps.size and not (steps.min() >= NEVER and steps.max() < STEP_LIMIT):
        raise InvalidRequest(
            f"steps {steps.min()}..{steps.max()} are outside {NEVER}..{STEP_LIMIT - 1}"
        )
    return np.stack([steps >> STEP_SHIFT, steps & STEP_MASK], axis=-1).astype(np.float32)
