"""`megalith tasks`: what `megalith train` can train."""

import importlib.util
import os
from importlib.machinery import PathFinder
from pathlib import Path

from rich.console import Console
from rich.table import Table

from megalith.cli.screen.output import print_line
from megalith.runtime.config.commands import Command, did_you_mean, fail
from megalith.runtime.task_loading import registered_tasks

TASKS = {
    "clicks": "the demo: a generated click log, drawn from a known model",
    "ctr": "a click model on columns of your own files: megalith train ctr --help",
}
_YOUR_OWN = "your own: package.module:factory or path/to/file.py:Class"


def refuse_unknown(name: str) -> None:
    """A usage error if workers would not find the task, so that none is started for it.

    The module of a task may be slow to import, or may need a GPU: it is looked for, not imported.
    `refuse_unusable` has it imported where that is what the workers of this machine will do.
    """
    module, is_own, factory = name.rpartition(":")
    names = [*TASKS, *registered_tasks()]
    is_file = name.endswith(".py") and Path(name).is_file()

    if is_file or (module and not factory):
        file = name.removesuffix(":")
        fail(f"{name} is no task: name the class or function in it, such as {file}:MyTask")

    if not is_own and name not in names:
        known = ", ".join(names)
        all_of_them = f"; use {known}, or {_YOUR_OWN}"
        way_out = did_you_mean(name, names) or all_of_them
        fail(f"{name} is no task{way_out}")

    if module.endswith(".py"):
        if not Path(module).is_file():
            fail(f"{name} is no task: there is no file {module}")

    elif is_own and not _is_found(module):
        fail(f"{name} is no task: there is no module {module} here, and none is installed")


def _is_found(module: str) -> bool:
    """Whether a worker finds the package: `python -m` looks into the working directory first."""
    package, _, _ = module.partition(".")
    if not package:
        return False

    is_here = PathFinder.find_spec(package, [os.getcwd()]) is not None
    return is_here or importlib.util.find_spec(package) is not None


def _tasks() -> int:
    console = Console()
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, about in TASKS.items():
        table.add_row(name, about)

    registered = registered_tasks()
    for name in sorted(registered):
        entry = registered[name]
        package = "an installed package"
        if entry.dist:
            package = entry.dist.name

        table.add_row(name, f"{entry.value}, of {package}")

    console.print(table, highlight=False)
    print_line(console, f"{_YOUR_OWN}, see the tutorial")
    return 0


tasks = Command("tasks", help="List the tasks that can be trained by name.", callback=_tasks)
