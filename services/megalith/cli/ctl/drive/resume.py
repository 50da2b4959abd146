"""End the hold of an operator, or of a ps out of memory; without other holds, training goes on."""

from typing import Any

import click

from megalith.cli.ctl.calls import ControllerCall, command
from megalith.cli.screen.words import held_by
from megalith.control import BarrierStatus, Controller
from megalith.runtime.config.commands import Option

_PLATFORM_HOLDS = (
    "`megalith ctl app resume` ends the platform's hold; if its AppMaster is gone, "
    "`megalith ctl resume --holder platform` does"
)

_HOLDER = Option(
    ["--holder"],
    type=click.Choice(["operator", "platform"]),
    default="operator",
    help="Whose hold to end. platform: of an AppMaster that is gone.  [default: operator]",
)


@command(_HOLDER)
def resume(call: ControllerCall, holder: str) -> None:
    def ask(job: Controller) -> dict[str, Any]:
        job.resume(holder)
        barrier = job.status().barrier
        return {"ok": True, "held_by": held_by(barrier), "way_out": _way_out(barrier)}

    call.answer(ask, _show)


def _way_out(barrier: BarrierStatus) -> str:
    """What ends the holds that are left, where it takes another command than this one.

    Otherwise empty.
    """
    is_held_by_platform = any(holder.kind == "platform" for holder in barrier.holders)
    return _PLATFORM_HOLDS if is_held_by_platform else ""


def _show(answer: dict[str, Any]) -> None:
    others = answer["held_by"]
    print(f"training is still {' and '.join(others)}" if others else "training goes on")
    if answer["way_out"]:
        print(answer["way_out"])
