"""Show the global step."""

from megalith.cli.ctl.calls import ControllerCall, command
from megalith.control import Controller


@command()
def training_status(call: ControllerCall) -> None:
    def ask(job: Controller) -> dict[str, int]:
        return {"global_step": job.training_status()}

    def show(answer: dict[str, int]) -> None:
        print(f"global step {answer['global_step']}")

    call.answer(ask, show)
