"""`megalith ctl save`: a checkpoint now."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from rich.console import Console

from megalith.cli.ctl.calls import ControllerCall, command
from megalith.cli.ctl.options import directory_option
from megalith.control import Controller, SaveResult
from megalith.errors import MegalithError
from megalith.runtime.commands import Option

_LOOK_S = 0.5  # between two looks at how far a save is
_HOLD = Option(["--hold"], is_flag=True, help="Hold training meanwhile: one moment of all workers.")


@command("save", directory_option(), _HOLD)
def save(call: ControllerCall, directory: str, hold: bool) -> None:
    """Save a checkpoint and wait until it is complete."""
    where = os.path.abspath(directory) if directory else ""

    def ask(job: Controller) -> SaveResult:
        console = Console(stderr=True)
        if call.is_json or not console.is_terminal:
            return job.save(where, hold=hold)

        return _watched(job, lambda: job.save(where, hold=hold), console)

    call.answer(ask, _show_saved)


def _watched(job: Controller, save: Callable[[], SaveResult], console: Console) -> SaveResult:
    """Save, and show meanwhile how far it is."""
    result: Future[SaveResult] = Future()

    def run() -> None:
        try:
            result.set_result(save())
        except BaseException as error:
            result.set_exception(error)

    # A daemon: Ctrl-C leaves this command, and the save goes on.
    threading.Thread(target=run, name="save", daemon=True).start()
    with console.status("saving") as shown:
        while True:
            try:
                return result.result(_LOOK_S)
            except TimeoutError:
                shown.update(_progress(job))


def _progress(job: Controller) -> str:
    try:
        saving = job.status().saving
    except MegalithError:
        return "saving; the controller does not answer"

    if saving is None:
        return "waiting for another save, or for workers to block"

    written = f"{saving.bytes / 1e6:.1f} MB of about {saving.rows:,} rows"
    return f"saving step {saving.step}: {written} in {saving.seconds:.1f} s"


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
