"""Save a checkpoint and wait until it is complete."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from megalith.checkpoint.storage.location import absolute
from megalith.cli.ctl.calls import ControllerCall, command
from megalith.cli.ctl.options import directory_option
from megalith.control import Controller, LastSave, SaveProgress, SaveResult
from megalith.errors import MegalithError
from megalith.runtime.config.commands import Option
from megalith.runtime.counting import counted

_LOOK_S = 0.5  # between two looks at how far a save is
_HOLD = Option(["--hold"], is_flag=True, help="Hold training meanwhile: one moment of all workers.")


@command(directory_option(), _HOLD)
def save(call: ControllerCall, directory: str, hold: bool) -> None:
    where = absolute(directory) if directory else ""

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
    columns = (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("saving", total=None)
        while True:
            try:
                return result.result(_LOOK_S)
            except TimeoutError:
                said, share = _progress(job)
                total = None if share is None else 1.0
                bar.update(task, description=said, completed=share or 0.0, total=total)


def _progress(job: Controller) -> tuple[str, float | None]:
    """What to say of the save, and the share of it that is done; None if nobody knows."""
    try:
        status = job.status()
    except MegalithError:
        return "saving; the controller does not answer", None

    if status.saving is None:
        return "waiting for another save, or for workers to block", None

    return progress_of(status.saving, status.last_save)


def progress_of(saving: SaveProgress, last: LastSave | None) -> tuple[str, float | None]:
    """How many bytes there will be is only known where a save before this one says it of its rows.

    Rows are counted in bytes then, so they are a guess if tables have grown unevenly.
    """
    megabytes = f"{saving.bytes / 1e6:.1f} MB"
    so_far = f"in {saving.seconds:.1f} s"

    if last is None or not last.rows or not last.bytes or not saving.rows:
        rows = counted(saving.rows, "row")
        said = f"saving step {saving.step}: {megabytes} of about {rows} {so_far}"
        return said, None

    bytes_of_a_row = last.bytes / last.rows
    expected_bytes = bytes_of_a_row * saving.rows
    share = min(1.0, saving.bytes / expected_bytes)

    rows = f"about {share * saving.rows:,.0f} of {counted(saving.rows, 'row')}"
    return f"saving step {saving.step}: {rows}, {megabytes} {so_far}", share


def _show_saved(saved: SaveResult) -> None:
    megabytes = saved.bytes / 1e6
    rows = counted(saved.rows, "row")
    print(
        f"saved {saved.path} "
        f"(step {saved.step}, {rows}, {megabytes:.1f} MB in {saved.seconds:.1f} s)"
    )
    for name in saved.removed:
        what = "an older checkpoint that is not kept"
        if name == saved.removed_stopgap:
            what = "which was made in place of an increment; a save takes its place"

        print(f"removed {name}, {what}")

    if saved.moving_workers:
        print(
            f"not one moment of all workers: {list(saved.moving_workers)} did not block in time; "
            "the checkpoint may have a part of a step of theirs"
        )
