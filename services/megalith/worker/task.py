"""What a worker trains: the interface of a task, and how one is found by name."""

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

import megalith
from megalith.client import Ids
from megalith.errors import InvalidSetting
from megalith.schema import TableConfig, VariableConfig

B = TypeVar("B")

_MEGALITH = tuple(megalith.__path__)  # both roots of the package

IdsByTable = Mapping[str, NDArray[np.int64] | Ids]
RowsByTable = Mapping[str, NDArray[np.float32]]
Variables = Mapping[str, NDArray[Any]]  # their values by name
# Reads the rows of these ids, by table, and the variables of these names.
Read = Callable[[IdsByTable, Sequence[str]], tuple[RowsByTable, Variables]]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one batch teaches.

    `rows` has, by table, one gradient row for each id that `Task.ids` asked for, in that order.
    `variables` has the gradients of variables by name. `req_time_s` is the Unix time of the batch's
    data, by which its rows expire; 0 if the data has none. `metrics` are further figures of the
    step by name, such as its AUC: means over recent steps are shown beside the loss.
    """

    rows: RowsByTable
    variables: Variables
    loss: float
    req_time_s: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


class Task(Protocol, Generic[B]):
    """A model and its input.

    Batches are numbered, and a number always gives the same batch. For example, a worker that
    replaces another begins with the number at which that one stood.

    A task may also have `on_barrier(action: str) -> None`. It is called once per hold of the
    training, on the training thread, between two steps, before the worker counts as blocked.
    `megalith.tasks.clicks` is a complete task to start from.
    """

    tables: tuple[TableConfig, ...]
    variables: tuple[VariableConfig, ...]

    def num_batches(self) -> int:
        """Batches of all workers together; 0 = endless."""

    def batch(self, number: int) -> B:
        """The batch of that number."""

    def num_examples(self, batch: B) -> int: ...

    def ids(self, batch: B) -> IdsByTable:
        """Which rows the batch needs, by table.

        Ids that are distinct already may be given as `Ids(values, distinct=True)`, which saves the
        worker the search for equal ones.
        """

    def gradients(self, batch: B, rows: RowsByTable, variables: Variables) -> Gradients:
        """One forward and backward pass."""

    def evaluate(self, read: Read) -> dict[str, float]:
        """Figures of merit of the trained model, by name."""


def load_task(name: str, options: Mapping[str, Any]) -> Task[Any]:
    """A built-in task by name, or a class or factory of your own, called with the options.

    That is package.module:name, or path/to/file.py:name; the folder of the file is where its own
    imports are looked for.
    """
    module_name, _, attribute = name.rpartition(":")
    if not module_name:
        module_name = f"megalith.tasks.{name}"
        attribute = "make_task"

    try:
        module = _imported(module_name)
        factory = getattr(module, attribute)
    except (ImportError, AttributeError, ValueError, FileNotFoundError) as error:
        raise InvalidSetting(
            f"--task={name}: no such task ({error}); "
            "use clicks, ctr, package.module:factory or file.py:factory of your own"
        ) from error
    except Exception as error:
        raise InvalidSetting(
            f"--task={name}: it does not import: {type(error).__name__}: {error}{raised_at(error)}"
        ) from error

    try:
        task: Task[Any] = factory(**options)
    except TypeError as error:
        raise InvalidSetting(
            f"--task={name}: it does not take the keywords {sorted(options)} ({error})"
        ) from error

    return task


def _imported(name: str) -> ModuleType:
    """A module by its name or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)

    path = Path(name).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {name}")

    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)

    return importlib.import_module(path.stem)


def raised_at(error: BaseException) -> str:
    """The last line of the task's own code on the way to this error.

    For example " (my_task.py:31 in batch)". Lines of Megalith, of installed packages and of Python
    itself are passed over; if there are no others, empty.
    """
    python = sysconfig.get_path("stdlib")
    packages = sysconfig.get_path("purelib")
    others = (*_MEGALITH, python, packages, "<")  # "<": code that is in no file
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith(others):
            return f" ({frame.filename}:{frame.lineno} in {frame.name})"

    return ""
