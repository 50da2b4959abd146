"""Hold training: every worker blocks at its next step."""

from typing import Any

from megalith.cli.ctl.calls import ControllerCall, command
from megalith.cli.screen.words import journal_line
from megalith.control import Controller
from megalith.errors import BarrierAlreadyPlaced
from megalith.runtime.config.commands import Option

_ALREADY_STOPPED = "An operator has stopped training; `megalith ctl resume` lets it go on."

_ACTION = Option(
    ["--action"],
    default="",
    metavar="ACTION",
    help="What workers do when training is resumed. Stop: end their shares, save, end the job.",
)
_REASON = Option(
    ["--reason"], default="", metavar="TEXT", help="Why, for whoever looks at the status."
)


@command(_ACTION, _REASON)
def stop(call: ControllerCall, action: str, reason: str) -> None:
    def ask(job: Controller) -> dict[str, Any]:
        try:
            job.stop(action, reason)
        except BarrierAlreadyPlaced as error:
            raise BarrierAlreadyPlaced(f"{error} {_ALREADY_STOPPED}") from None

        return {"ok": True, "journal_error": job.status().journal_error}

    call.answer(ask, _show)


def _show(answer: dict[str, Any]) -> None:
    print("training is held")
    if answer["journal_error"]:
        print(f"the journal {journal_line(answer['journal_error'])}")
