"""`megalith tasks`: what `megalith train` can train."""

from rich.console import Console
from rich.table import Table

from megalith.cli.output import print_line
from megalith.runtime.commands import Command

_TASKS = {
    "clicks": "the demo: a generated click log, drawn from a known model",
    "ctr": "a click model on columns of your own files: megalith train ctr --help",
}


def _tasks() -> int:
    console = Console()
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, about in _TASKS.items():
        table.add_row(name, about)

    console.print(table, highlight=False)
    print_line(
        console, "your own: package.module:factory or path/to/file.py:Class, see the tutorial"
    )
    return 0


tasks = Command("tasks", help="List the tasks that can be trained by name.", callback=_tasks)
