"""What a row keeps for an optimizer: named fields, one after the other, in float32 slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.engine.kernels.optimizers._rows import NEVER, STEP_MASK, STEP_SHIFT, Fields
from megalith.errors import InvalidRequest
from megalith.kernels.dtypes import F32

STEP_LIMIT = 1 << (2 * STEP_SHIFT)


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


def lay_out(state: Fields) -> tuple[StateField, ...]:
    """What an optimizer's `state_of` names, one field after the other."""
    fields: list[StateField] = []
    offset = 0

    for name, width, initial in state:
        is_step = name.endswith("_step")
        fields.append(StateField(name, offset, width, initial, is_step))
        offset += width

    return tuple(fields)


def initial_state(fields: Sequence[StateField]) -> F32:
    """The slots of a new row."""
    width = sum(field.width for field in fields)
    state = np.empty(width, np.float32)

    for field in fields:
        end = field.offset + field.width
        part = state[field.offset : end]

        if field.is_step:
            step = np.array([field.initial], np.int64)
            part[:] = pack_steps(step)
        else:
            part[:] = field.initial

    return state


def check_step(step: int) -> None:
    """Raise unless `step` is one that an update can have and rows can keep."""
    if not 0 <= step < STEP_LIMIT:
        raise InvalidRequest(f"step {step} is outside 0..{STEP_LIMIT - 1}")


def pack_steps(steps: NDArray[np.int64]) -> F32:
    """[n] steps as [n, 2] float32, exactly: both halves are whole numbers below 2^24."""
    if steps.size:
        least = steps.min()
        most = steps.max()

        if least < NEVER or most >= STEP_LIMIT:
            raise InvalidRequest(f"steps {least}..{most} are outside {NEVER}..{STEP_LIMIT - 1}")

    high = steps >> STEP_SHIFT
    low = steps & STEP_MASK
    halves = np.stack([high, low], axis=-1)
    return halves.astype(np.float32)
