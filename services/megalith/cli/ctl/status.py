"""`megalith ctl status` and `training-status`: how the job stands."""

from typing import Annotated

import typer

from megalith.cli.ctl.answers import errors_as_one_line
from megalith.cli.ctl.group import ControllerCall, command
from megalith.cli.ctl.watching import watch
from megalith.cli.output import print_status
from megalith.control import Controller

WatchOption = Annotated[
    bool, typer.Option("--watch", help="Show it again and again, until the job ends.")
]
EveryOption = Annotated[
    float, typer.Option("--every-s", min=0.1, help="Seconds between two looks of --watch.")
]


@command()
def status(call: ControllerCall, is_watch: WatchOption = False, every_s: EveryOption = 1.0) -> None:
    """Show every process, the step, the barrier, the last save and the next one."""
    if not is_watch:
        call.answer(Controller.status, print_status)
        return

    with errors_as_one_line(call.name), call.job() as job:
        watch(job.status, every_s, call.is_json)


@command("training-status")
def training_status(call: ControllerCall) -> None:
    """Show the global step."""

    def ask(job: Controller) -> dict[str, int]:
        return {"global_step": job.training_status()}

    def show(answer: dict[str, int]) -> None:
        print(f"global step {answer['global_step']}")

    call.answer(ask, show)
