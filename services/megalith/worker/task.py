"""What a worker trains: the interface of a task, and how one is found by name."""

import importlib
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

import megalith
from megalith.wire.errors import InvalidSetting
from megalith.wire.schema import TableConfig, VariableConfig

B = TypeVar("B")

_MEGALITH = tuple(megalith.__path__)  # both roots of the package

Rows = Mapping[str, NDArray[np.float32]]
Ids = Mapping[str, NDArray[np.int64]]
Variables = Mapping[str, NDArray[Any]]
Read = Callable[
    [Ids, Sequence[str]], tuple[Rows, Variables]
]  # rows of ids by table, and variables by name


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one batch teaches: a gradient row per id asked for, by table, and gradients of variables."""

    rows: Rows
    variables: Variables
    loss: float


class Task(Protocol, Generic[B]):
    """A model and its input. Batches are numbered, and a number always gives the same batch: a worker that replaces
    another goes on where that one stood.
    """  # noqa: D205  # the second sentence is the contract, not a detail

    tables: tuple[TableConfig, ...]
    variables: tuple[VariableConfig, ...]

    def num_batches(self) -> int:
        """Batches of all workers together; 0 = endless."""

    def batch(self, number: int) -> B:
        """The batch of that number."""

    def num_examples(self, batch: B) -> int: ...

    def ids(self, batch: B) -> Ids:
        """Which rows the batch needs, by table."""

    def gradients(self, batch: B, rows: Rows, variables: Variables) -> Gradients:
        """One forward and backward pass."""

    def evaluate(self, read: Read) -> dict[str, float]:
        """Figures of merit of the trained model, by name."""

    # A task may also have on_barrier(action: str) -> None. It is called once per barrier, on the training thread,
    # between two steps, before the worker counts as blocked.


def load_task(name: str, options: Mapping[str, int]) -> Task[Any]:
    """A built-in task by name, or any factory as package.module:attribute; called with the options as keywords."""
    module_name, _, attribute = name.partition(":")
    if not attribute:
        module_name, attribute = f"megalith.worker.{name}", "make_task"
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidSetting(
            f"--task={name}: no such task ({error}); use clicks, or package.module:factory of your own"
        ) from error
    try:
        task: Task[Any] = factory(**options)
    except TypeError as error:
        raise InvalidSetting(
            f"--task={name}: it does not take the keywords {sorted(options)} ({error})"
        ) from error
    return task


def raised_at(error: BaseException) -> str:
    """Like " (my_task.py:31 in batch)": the last line of the task's own code on the way to this error.

    Lines of Megalith, of installed packages and of Python itself are passed over; if there are no others, empty.
    """
    others = (*_MEGALITH, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*others, "<")):
            return f" ({frame.filename}:{frame.lineno} in {frame.name})"
    return ""
