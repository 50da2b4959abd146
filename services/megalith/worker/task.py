"""What a worker trains: the interface of a task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from megalith.client import Ids, Summary
from megalith.errors import InvalidSetting
from megalith.schema import TableConfig, VariableConfig
from megalith.worker.input import Input, Mode
from megalith.worker.numbered_input import NumberedInput
from megalith.worker.pieced_input import NumberedPieces

# How the input is divided among workers
STATIC = "static"
DYNAMIC = "dynamic"
SHARDING = (STATIC, DYNAMIC)

B_contra = TypeVar("B_contra", contravariant=True)
B_co = TypeVar("B_co", covariant=True)

IdsByTable = Mapping[str, NDArray[np.int64] | Ids]
RowsByTable = Mapping[str, NDArray[np.float32]]
Variables = Mapping[str, NDArray[Any]]  # their values by name
MakeSummaries = Callable[[], Sequence[Summary]]
# Reads the rows of these ids, by table, and the variables of these names.
Read = Callable[[IdsByTable, Sequence[str]], tuple[RowsByTable, Variables]]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one batch teaches.

    `rows` has, by table, one gradient row for each id that `Task.ids` asked for, in that order. If
    only some ids of a table have a gradient, `trained_ids` has these, and `rows` a row for each of
    them: the other ids are not pushed, so their rows stay as they are. `variables` has the
    gradients of variables by name. `req_time_s` is the Unix time of the batch's data, by which its
    rows expire; 0 if the data has none. `metrics` are further figures of the step by name, such as
    its AUC: means over recent steps are shown beside the loss. `summaries` makes arrays for
    TensorBoard, and is called only for steps that are written there. `missing_values` are those
    that the examples lack: their sum over the run is shown at the end.
    """

    rows: RowsByTable
    variables: Variables
    loss: float
    req_time_s: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    summaries: MakeSummaries | None = None
    trained_ids: Mapping[str, Ids] = field(default_factory=dict)
    missing_values: int = 0


class Task(Protocol[B_contra]):
    """A model and its input.

    Its input is one of two kinds, `InputTask` or `NumberedTask`.

    A task may also have `on_barrier(action: str) -> None`. It is called once per hold of the
    training, on the training thread, between two steps, before the worker counts as blocked.
    `megalith.tasks.clicks` is a complete task to start from.
    """

    tables: tuple[TableConfig, ...]
    variables: tuple[VariableConfig, ...]

    def num_examples(self, batch: B_contra) -> int: ...

    def ids(self, batch: B_contra) -> IdsByTable:
        """Which rows the batch needs, by table.

        Ids that are distinct already may be given as `Ids(values, distinct=True)`, which saves the
        worker the search for equal ones.
        """

    def gradients(self, batch: B_contra, rows: RowsByTable, variables: Variables) -> Gradients:
        """One forward and backward pass."""

    def evaluate(self, read: Read) -> dict[str, float]:
        """Figures of merit of the trained model, by name."""


@runtime_checkable
class InputTask(Protocol[B_co]):
    """A task that says itself what each worker reads."""

    def input(self, mode: Mode, index: int, count: int) -> Input[B_co]:
        """What worker `index` of `count` reads."""


@runtime_checkable
class NumberedTask(Protocol[B_co]):
    """A task whose batches are numbered, and a number always gives the same batch.

    For example, worker-1 of 3 trains the batches 1, 4, 7 and so on.
    """

    def num_batches(self) -> int:
        """Batches of all workers together; 0 = endless."""

    def batch(self, number: int) -> B_co:
        """The batch of that number."""


@runtime_checkable
class PiecedTask(Protocol[B_co]):
    """A task whose input can be handed out in pieces."""

    def pieced_input(self, mode: Mode) -> Input[B_co]:
        """A `PiecedInput`, the same for all workers, or one that is made of it."""


def open_input(
    task: object,
    mode: Mode,
    index: int,
    count: int,
    *,
    batch_size: int = 0,
    sharding: str = STATIC,
) -> Input[Any]:
    """What worker `index` of `count` reads. Numbered batches of another size have other numbers."""
    if sharding == DYNAMIC:
        return _pieced_input(task, mode, batch_size)
    if isinstance(task, InputTask):
        return task.input(mode, index, count)
    if isinstance(task, NumberedTask):
        return NumberedInput(task.batch, task.num_batches(), index, count, batch_size)

    raise InvalidSetting(
        f"{type(task).__name__} has no input: it needs a method input(mode, index, count), "
        "or num_batches() and batch(number)"
    )


def _pieced_input(task: object, mode: Mode, batch_size: int) -> Input[Any]:
    if isinstance(task, PiecedTask):
        return task.pieced_input(mode)
    if isinstance(task, NumberedTask) and not isinstance(task, InputTask):
        return NumberedPieces(task.batch, task.num_batches(), f"batch_size={batch_size}")

    raise InvalidSetting(
        f"--sharding=dynamic: {type(task).__name__} divides its input itself; it needs a method "
        "pieced_input(mode), or num_batches() and batch(number). Or use --sharding static"
    )
