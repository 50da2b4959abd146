"""`megalith ctl save`: a checkpoint now."""

import os

from megalith.cli.ctl.calls import ControllerCall, command
from megalith.cli.ctl.options import directory_option
from megalith.control import Controller, SaveResult
from megalith.runtime.commands import Option

_HOLD = Option(["--hold"], is_flag=True, help="Hold training meanwhile: one moment of all workers.")


@command("save", directory_option(), _HOLD)
def save(call: ControllerCall, directory: str, hold: bool) -> None:
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
