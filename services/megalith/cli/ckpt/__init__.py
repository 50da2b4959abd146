"""`megalith ckpt`: look at checkpoints, check them, move them, without a job.

A command is one line of the table below, and a function with `@command(...)` in a file of this
folder.
"""

from megalith.runtime.commands import Group, LazyCommand

_SECTIONS = {
    "Look": (
        LazyCommand(
            "ls",
            "megalith.cli.ckpt.looking:ls",
            "List the checkpoints of a model directory.",
        ),
        LazyCommand(
            "show",
            "megalith.cli.ckpt.looking:show",
            "Show what lies in a checkpoint: tables, variables, files.",
        ),
        LazyCommand(
            "diff",
            "megalith.cli.ckpt.comparing:diff",
            "Show what differs between two checkpoints.",
        ),
    ),
    "Check": (
        LazyCommand(
            "verify",
            "megalith.cli.ckpt.checking:verify",
            "Check every byte and every row of a checkpoint.",
        ),
    ),
    "Move": (
        LazyCommand(
            "export",
            "megalith.cli.ckpt.moving:export",
            "Write the rows of a checkpoint as Parquet or CSV.",
        ),
        LazyCommand(
            "import",
            "megalith.cli.ckpt.moving:import_",
            "Make a checkpoint of the table files of Monolith.",
        ),
        LazyCommand(
            "prune",
            "megalith.cli.ckpt.pruning:prune",
            "Remove old checkpoints, and what killed saves have left.",
        ),
    ),
}

ckpt = Group(
    "ckpt",
    sections=_SECTIONS,
    help="Look at checkpoints, check them and move them. No job has to run. "
    "Where a command takes a checkpoint, a model directory stands for its newest one.",
    examples=(
        "megalith ckpt ls model",
        "megalith ckpt verify model/model.ckpt-120",
        "megalith ckpt diff model/model.ckpt-120 model/model.ckpt-240",
        "megalith ckpt export model --format parquet --out rows",
    ),
)
