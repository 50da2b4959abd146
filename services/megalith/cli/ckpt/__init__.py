"""`megalith ckpt`: look at checkpoints, check them, move them, without a job.

A command is one file, in `look/`, `check/` or `move/`, named as the command. `command_files` says
how it is found.
"""

from megalith.cli.command_files import commands_in
from megalith.runtime.config.commands import Group

ckpt = Group(
    "ckpt",
    sections={
        "Look": commands_in("ckpt", "look"),
        "Check": commands_in("ckpt", "check"),
        "Move": commands_in("ckpt", "move"),
    },
    help="Look at checkpoints, check them and move them. No job has to run. "
    "Where a command takes a checkpoint, a model directory stands for its newest one.",
    examples=(
        "megalith ckpt ls model",
        "megalith ckpt verify model/model.ckpt-120",
        "megalith ckpt diff model/model.ckpt-120 model/model.ckpt-240",
        "megalith ckpt export model --format parquet --out rows",
    ),
)
