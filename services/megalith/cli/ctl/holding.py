"""`megalith ctl stop`, `resume` and `block-status`: hold training and let it go on."""

from typing import Any

import click

from megalith.cli.ctl.calls import ControllerCall, command
from megalith.cli.words import held_by, journal_line
from megalith.control import BarrierStatus, Controller
from megalith.errors import BarrierAlreadyPlaced
from megalith.runtime.commands import Option

_ALREADY_STOPPED = "An operator has stopped training; `megalith ctl resume` lets it go on."
_PLATFORM_HOLDS = (
    "`megalith ctl app resume` ends the platform's hold; if its AppMaster is gone, "
    "`megalith ctl resume --holder platform` does"
)


_ACTION = Option(
    ["--action"],
    default="",
    metavar="ACTION",
    help="What workers do when training is resumed. Stop: end their shares, save, end the job.",
)
_REASON = Option(
    ["--reason"], default="", metavar="TEXT", help="Why, for whoever looks at the status."
)
_HOLDER = Option(
    ["--holder"],
    type=click.Choice(["operator", "platform"]),
    default="operator",
    help="Whose hold to end. platform: of an AppMaster that is gone.  [default: operator]",
)


@command("stop", _ACTION, _REASON)
def stop(call: ControllerCall, action: str, reason: str) -> None:
    """Hold training: every worker blocks at its next step."""

    def ask(job: Controller) -> dict[str, Any]:
        try:
            job.stop(action, reason)
        except BarrierAlreadyPlaced as error:
            raise BarrierAlreadyPlaced(f"{error} {_ALREADY_STOPPED}") from None

        return {"ok": True, "journal_error": job.status().journal_error}

    call.answer(ask, _show_stopped)


@command("resume", _HOLDER)
def resume(call: ControllerCall, holder: str) -> None:
    """Let training go on that an operator or a ps out of memory stopped."""

    def ask(job: Controller) -> dict[str, Any]:
        job.resume(holder)
        barrier = job.status().barrier
        return {"ok": True, "held_by": held_by(barrier), "way_out": _way_out(barrier)}

    call.answer(ask, _show_resumed)


@command("block-status")
def block_status(call: ControllerCall) -> None:
    """Show which workers wait at the barrier."""

    def ask(job: Controller) -> dict[str, list[int]]:
        blocked, unblocked = job.block_status()
        return {"blocked_indices": blocked, "unblocked_indices": unblocked}

    call.answer(ask, _show_blocked)


def _way_out(barrier: BarrierStatus) -> str:
    """What ends the holds that are left, where it takes another command than this one.

    Otherwise empty.
    """
    is_held_by_platform = any(holder.kind == "platform" for holder in barrier.holders)
    return _PLATFORM_HOLDS if is_held_by_platform else ""


def _show_stopped(answer: dict[str, Any]) -> None:
    print("training is held")
    if answer["journal_error"]:
        print(f"the journal {journal_line(answer['journal_error'])}")


def _show_resumed(answer: dict[str, Any]) -> None:
    others = answer["held_by"]
    print(f"training is still {' and '.join(others)}" if others else "training goes on")
    if answer["way_out"]:
        print(answer["way_out"])


def _show_blocked(answer: dict[str, list[int]]) -> None:
    from rich.console import Console
    from rich.table import Table

    blocked = answer["blocked_indices"]
    unblocked = answer["unblocked_indices"]
    table = Table("worker", "blocked")
    for index in sorted(blocked + unblocked):
        table.add_row(str(index), "yes" if index in blocked else "no")

    Console().print(table)
