"""What a task answers for a batch: asked for, looked at, and placed if it is wrong."""

import logging
import math
from typing import Any

import numpy as np

from megalith.client import Ids
from megalith.errors import InvalidRequest, NonFiniteValue, ShapeMismatch
from megalith.kernels.dtypes import F32
from megalith.worker.batches import TrainingBatch
from megalith.worker.task import Gradients, RowsByTable, Task, Variables

logger = logging.getLogger(__name__)

ON_NAN = ("stop", "skip")

_WAY_OUT = (
    "Smaller learning rates may help, or look at the data; --on-nan skip leaves such batches out, "
    "and counts them"
)


def gradients_of(
    task: Task[Any],
    batch: TrainingBatch,
    rows: RowsByTable,
    variables: Variables,
    *,
    step: int,
    on_nan: str,
) -> Gradients | None:
    """What the task learns from a batch.

    None if its loss or a gradient is not finite, or the task says so by NonFiniteValue, and
    `on_nan` is "skip". Whatever the task raises has a note with the step and the place in the
    input.
    """
    try:
        computed = task.gradients(batch.batch, rows, variables)
        _check(computed, batch)
        _check_finite(computed)
    except NonFiniteValue as error:
        if on_nan == "stop":
            error.add_note(place(step, batch))
            raise

        logger.warning("batch left out at %s: %s", place(step, batch), error)
        return None
    except BaseException as error:  # sys.exit in a task too
        error.add_note(place(step, batch))
        raise

    return computed


def row_gradients(batch: TrainingBatch, computed: Gradients) -> dict[str, tuple[Ids, F32]]:
    """(ids, their gradients) by table, as a push takes them."""
    pushed = {}
    for table, gradients in computed.rows.items():
        pushed[table] = _ids_of(table, batch, computed), gradients

    return pushed


def _ids_of(table: str, batch: TrainingBatch, computed: Gradients) -> Ids:
    """Those that have a gradient: all of the batch, unless the task says which."""
    return computed.trained_ids.get(table, batch.ids[table])


def _check_finite(computed: Gradients) -> None:
    if not math.isfinite(computed.loss):
        raise NonFiniteValue(f"the loss is {computed.loss}. {_WAY_OUT}")

    for kind, gradients in (("table", computed.rows), ("variable", computed.variables)):
        for name, values in gradients.items():
            is_finite = np.isfinite(values)
            if not is_finite.all():
                raise NonFiniteValue(f"{kind} {name}: a gradient is NaN or infinite. {_WAY_OUT}")


def place(step: int, batch: TrainingBatch) -> str:
    """For example "step 12, clicks/day1.parquet row group 3"."""
    return f"step {step}, {batch.where}" if batch.where else f"step {step}"


def _check(computed: Gradients, batch: TrainingBatch) -> None:
    if not isinstance(computed, Gradients):
        raise InvalidRequest(
            f"the task's gradients() returned {type(computed).__name__}, expected Gradients"
        )

    if not isinstance(computed.loss, int | float):
        raise InvalidRequest(
            f"the loss is a {type(computed.loss).__name__}, expected one number: float(loss)"
        )

    for table, gradients in computed.rows.items():
        if table not in batch.ids:
            raise InvalidRequest(
                f"there are gradients of table {table}, of which the batch asked for no rows; "
                f"it asked for {sorted(batch.ids)}"
            )

        num_ids = len(_ids_of(table, batch, computed))
        if len(gradients) != num_ids:
            raise ShapeMismatch(f"table {table}: {len(gradients)} gradients for {num_ids} ids")
