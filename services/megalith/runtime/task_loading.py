"""How a task is found: by its registered name, by import path or by the path of a file."""

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import megalith
from megalith.errors import InvalidSetting, MegalithError
from megalith.runtime.config.settings import suggestion

GROUP = "megalith.tasks"  # of entry points: what an installed package calls its tasks
_MEGALITH = tuple(megalith.__path__)  # both roots of the package


def registered_tasks() -> dict[str, EntryPoint]:
    """The tasks of installed packages by name; of two with one name the first that is found."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, entry)

    return found


def load_task(name: str, options: Mapping[str, Any]) -> Any:
    """A task by name, or a class or factory of your own, called with the options.

    Your own is package.module:name, or path/to/file.py:name; the folder of the file is where its
    own imports are looked for. A name is that of a built-in task, or of an entry point in the group
    `megalith.tasks`.
    """
    factory = task_factory(name, options)
    try:
        return factory(**options)
    except MegalithError:
        raise
    except Exception as error:
        raise InvalidSetting(
            f"--task={name}: it cannot be made: {type(error).__name__}: {error}{raised_at(error)}"
        ) from error


def task_factory(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """What makes the task of that name, once it is known to take the options; it is not called."""
    factory = load_named(
        "task",
        name,
        origin=f"--task={name}",
        advice="use clicks, ctr, package.module:factory or file.py:factory of your own",
        find=_task_factory,
    )
    try:
        signature = inspect.signature(factory)
        signature.bind(**options)
    except TypeError as error:
        raise InvalidSetting(f"--task={name}: {_misfit(factory, options, error)}") from error
    except ValueError:
        pass  # a callable that does not say what it takes

    return factory


def _misfit(factory: Callable[..., Any], options: Mapping[str, Any], error: TypeError) -> str:
    """Why the factory cannot be called with the options, and what to write instead."""
    taken = inspect.signature(factory).parameters if callable(factory) else {}
    unknown = sorted(name for name in options if name not in taken)
    if unknown and len(unknown) < len(options):
        hint = suggestion(unknown[0], {name: name for name in taken})
        return f"it does not take the keywords {unknown}{hint}"

    keywords = ", ".join(sorted(options))
    return (
        f"it does not take the keywords {sorted(options)} ({error}); a class "
        f"needs def __init__(self, *, {keywords}), and a function (*, {keywords})"
    )


def load_named(
    kind: str,
    name: str,
    *,
    origin: str,
    advice: str,
    find: Callable[[str], Any] | None = None,
) -> Callable[..., Any]:
    """What package.module:name or path/to/file.py:name stands for.

    InvalidSetting that begins with the origin and ends with the advice, if there is none.
    """
    look_up = find or _attribute
    try:
        found: Callable[..., Any] = look_up(name)
        return found
    except Exception as error:
        raised = raised_at(error)
        is_absent = isinstance(error, ImportError | AttributeError | ValueError | FileNotFoundError)
        if is_absent and not raised:
            raise InvalidSetting(f"{origin}: no such {kind} ({error}); {advice}") from error

        raise InvalidSetting(
            f"{origin}: it does not import: {type(error).__name__}: {error}{raised}"
        ) from error


def _task_factory(name: str) -> Any:
    if ":" in name:
        return _attribute(name)

    registered = registered_tasks()
    if name in registered:
        return registered[name].load()

    return _attribute(f"megalith.tasks.{name}:make_task")


def _attribute(name: str) -> Any:
    module_name, _, attribute = name.rpartition(":")
    module = _imported(module_name)
    if not hasattr(module, attribute):
        own = {each: each for each in vars(module) if _is_made_by(module, each)}
        hint = suggestion(attribute, own) if own else ""
        raise AttributeError(f"{module_name} has no {attribute}{hint}")

    return getattr(module, attribute)


def _is_made_by(module: ModuleType, name: str) -> bool:
    """Whether the name is one of the module's own classes and functions, for others to use."""
    home = getattr(getattr(module, name), "__module__", None)
    return home == module.__name__ and not name.startswith("_")


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

    module = importlib.import_module(path.stem)
    found = module.__file__
    if found is None or Path(found).resolve() != path:
        raise ImportError(f"{path.stem} is the name of another module, {found}; rename the file")

    return module


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
