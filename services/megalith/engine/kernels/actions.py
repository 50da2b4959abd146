"""What a write does to the rows it found or made.

There is one tuple type per action, compiled into the loop of write.py.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from megalith.engine.kernels.codes import ids_of
from megalith.engine.kernels.copying import copy_floats
from megalith.engine.kernels.layout import U64, Int, Rows, Secret
from megalith.engine.kernels.segments import fill_segments, run_stages
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.jit import kernel


class Update(NamedTuple):
    """One optimizer step per position; inputs are gradients."""

    stages: Any
    step: Int


class Assign(NamedTuple):
    """The first `width` floats become the inputs: the embedding, or a whole row to restore."""

    width: Int


class AssignAdd(NamedTuple):
    """The inputs are added to the first `width` floats."""

    width: Int


class Reinitialize(NamedTuple):
    """Rows become as new; no inputs."""

    fills: Any


@kernel
def update(
    action: Update, rows: Rows, starts: I64, secret: Secret, codes: U64, ids: I64, inputs: F32
) -> None:
    run_stages(action.stages, rows.values, starts, inputs, action.step)


@kernel
def assign(
    action: Assign, rows: Rows, starts: I64, secret: Secret, codes: U64, ids: I64, inputs: F32
) -> None:
    flat = inputs.reshape(-1)
    width = action.width
    for i in range(starts.size):
        if starts[i] >= 0:
            copy_floats(flat, i * width, rows.values, starts[i], width)


@kernel
def assign_add(
    action: AssignAdd, rows: Rows, starts: I64, secret: Secret, codes: U64, ids: I64, inputs: F32
) -> None:
    flat = inputs.reshape(-1)
    width = np.uint64(action.width)
    values = rows.values
    for i in range(starts.size):
        if starts[i] >= 0:
            source = np.uint64(i) * width
            target = np.uint64(starts[i])
            for j in range(width):
                values[target + j] += flat[source + j]


@kernel
def reinitialize(
    action: Reinitialize,
    rows: Rows,
    starts: I64,
    secret: Secret,
    codes: U64,
    ids: I64,
    inputs: F32,
) -> None:
    for i in range(starts.size):
        if starts[i] >= 0:
            copy_floats(rows.template, 0, rows.values, starts[i], rows.template.size)
    ids_of(secret, codes, ids)
    fill_segments(action.fills, rows.values, starts, ids)


_KERNELS: dict[type, Any] = {
    Update: update,
    Assign: assign,
    AssignAdd: assign_add,
    Reinitialize: reinitialize,
}


def perform(
    action: Any, rows: Rows, starts: I64, secret: Secret, codes: U64, ids: I64, inputs: F32
) -> None:
    """Do `action` to the rows at `starts`; -1 skips.

    Row i has the code codes[i] and takes inputs[i].

    An action may overwrite the inputs. `ids` is scratch for the ids of the codes: an action runs
    under a latch, so it allocates nothing.
    """
    raise NotImplementedError  # kernels get the overload below


@overload(perform)
def _perform(
    action: Any, rows: Any, starts: Any, secret: Any, codes: Any, ids: Any, inputs: Any
) -> Any:
    act = _KERNELS[action.instance_class]

    def run(
        action: Any, rows: Any, starts: Any, secret: Any, codes: Any, ids: Any, inputs: Any
    ) -> Any:
        act(action, rows, starts, secret, codes, ids, inputs)

    return run


def floats_at_risk(action: Any, width: Int) -> Int:
    """How many floats of a row of this width `action` may make NaN or infinite.

    That is all, the embedding, or none.

    Values that are assigned were looked at before, and those of serving tables are no floats.
    """
    raise NotImplementedError  # kernels get the overload below


@overload(floats_at_risk)
def _floats_at_risk(action: Any, width: Any) -> Any:
    def whole_row(action: Any, width: Any) -> Any:
        return width

    def embedding(action: Any, width: Any) -> Any:
        return action.width

    def none(action: Any, width: Any) -> Any:
        return 0

    return {Update: whole_row, AssignAdd: embedding}.get(action.instance_class, none)
