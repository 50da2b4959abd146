"""`megalith ctl save`: a checkpoint now."""

import os
from typing import Annotated

import typer

from megalith.cli.ctl.group import ControllerCall, command
from megalith.cli.ctl.options import DirectoryOption
from megalith.control import Controller, SaveResult

HoldOption = Annotated[
    bool, typer.Option("--hold", help="Hold training meanwhile: one moment of all workers.")
]


@command()
def save(call: ControllerCall, directory: DirectoryOption = "", hold: HoldOption = False) -> None:
    """Save a checkpoint and wait until it is complete."""

    def ask(job: Controller) -> SaveResult:
        where = os.path.abspath(directory) if directory else ""
        return job.save(where, hold=hold)

    call.answer(ask, _show_saved)


def _show_saved(saved: SaveResult) -> None:
    megabytes = saved.bytes / 1e6
    print(
        f"saved {saved.path} "
        f"(step {saved.step}, {saved.rows} rows, {megabytes:.1f} MB in {saved.seconds:.1f} s)"
    )
    for name in saved.removed:
        print(f"removed {name}, which --max-to-keep does not keep")

    if saved.moving_workers:
        print(
            f"not one moment of all workers: {list(saved.moving_workers)} did not block in time; "
            "the checkpoint may have a part of a step of theirs"
        )
