"""List the checkpoints of a model directory, the oldest first.

The state of a checkpoint is one of these. newest: a job starts from it. listed: the list of the
directory names it. kept: it is complete, but the list does not name it. exempt: it is never
removed. incomplete: a save that is under way, or was killed. damaged: its manifest cannot be
read. missing: the list names it, but it is gone.
"""

import click

from megalith.checkpoint.inspection.overview import Entry, FolderStanding, Overview, overview
from megalith.checkpoint.storage.location import Location
from megalith.cli.ckpt.calls import CheckpointCall, command, location
from megalith.cli.ckpt.text import duration, number, print_table, size
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR

_DIRECTORY = click.Argument(
    ["directory"],
    metavar="[DIR]",
    default=DEFAULT_MODEL_DIR,
    type=location,
)


@command(_DIRECTORY, examples=("megalith ckpt ls model", "megalith ckpt ls --json"))
def ls(call: CheckpointCall, directory: Location) -> None:
    call.answer(overview(directory), _show_overview)


def _show_overview(found: Overview) -> None:
    if not found.entries:
        print(f"{found.path} has no checkpoints")
        return

    rows = []
    for entry in found.entries:
        age_s = entry.age_s(found.now_s)
        rows.append(
            [
                entry.name,
                _state(entry),
                number(entry.step),
                "-" if age_s is None else duration(age_s),
                number(entry.rows),
                size(entry.bytes),
            ]
        )

    print_table(("checkpoint", "state", "step", "age", "rows", "size"), rows, left=2)
    for entry in found.entries:
        if entry.problem and entry.standing != FolderStanding.INCOMPLETE:
            print(f"{entry.name}: {entry.problem}")


def _state(entry: Entry) -> str:
    if entry.standing != FolderStanding.COMPLETE:
        return str(entry.standing)
    if entry.is_newest:
        return "newest"
    if entry.is_exempt:
        return "exempt"

    return "listed" if entry.is_listed else "kept"
