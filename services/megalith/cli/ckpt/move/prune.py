"""Remove all but the newest checkpoints, and what killed saves have left.

Without --yes it only says what it would remove. It never removes the newest complete
checkpoint, the one that the list names as the newest, and those that the file
monolith_checkpoint exempts.
"""

from collections.abc import Sequence

import click

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.moving import pruning
from megalith.checkpoint.moving.pruning import PrunePlan
from megalith.checkpoint.storage.location import Location
from megalith.cli.ckpt.calls import CheckpointCall, command, location
from megalith.cli.ckpt.text import print_table, size
from megalith.runtime.config.commands import Option
from megalith.runtime.counting import counted

_DIRECTORY = click.Argument(["directory"], metavar="DIR", type=location)
_KEEP = Option(
    ["--keep"],
    type=int,
    required=True,
    metavar="N",
    help="How many of the newest stay; at least 1.",
)
_YES = Option(["--yes", "is_meant"], is_flag=True, help="Remove them.  [default: only say which]")


@command(_DIRECTORY, _KEEP, _YES, examples=("megalith ckpt prune model --keep 3 --yes",))
def prune(call: CheckpointCall, directory: Location, keep: int, is_meant: bool) -> None:
    if is_meant:
        done = pruning.prune(directory, keep)
        call.answer(done, _show_removed, is_done=True)
    else:
        plan = pruning.plan(directory, keep)
        call.answer(plan, _show_plan, is_done=False)


def _show_removed(done: PrunePlan) -> None:
    _show(done, "removed")
    what = counted(len(done.removals), "folder")
    print(f"removed {what}, {size(done.bytes)}")


def _show_plan(plan: PrunePlan) -> None:
    _show(plan, "would go")

    if plan.removals:
        what = counted(len(plan.removals), "folder")
        print(f"with --yes, {what} would be removed, {size(plan.bytes)}")
    else:
        print("nothing to remove")


def _show(plan: PrunePlan, verb: str) -> None:
    rows = []
    for kept in plan.kept:
        rows.append([kept.name, "stays", kept.why])

    for removal in plan.removals:
        rows.append([removal.name, verb, removal.why])

    rows.sort(key=_by_step)
    if rows:
        print_table(("folder", "", "why"), rows, left=3)


def _by_step(row: Sequence[str]) -> tuple[int, str]:
    """Checkpoints by their step, after folders whose name has none."""
    name = row[0]
    step = catalog.step_of(name)
    return (-1 if step is None else step, name)
