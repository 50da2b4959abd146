"""Show which workers wait at the barrier."""

from megalith.cli.ctl.calls import ControllerCall, command
from megalith.control import Controller


@command()
def block_status(call: ControllerCall) -> None:
    def ask(job: Controller) -> dict[str, list[int]]:
        blocked, unblocked = job.block_status()
        return {"blocked_indices": blocked, "unblocked_indices": unblocked}

    call.answer(ask, _show)


def _show(answer: dict[str, list[int]]) -> None:
    from rich.console import Console
    from rich.table import Table

    blocked = answer["blocked_indices"]
    unblocked = answer["unblocked_indices"]
    table = Table("worker", "blocked")
    for index in sorted(blocked + unblocked):
        table.add_row(str(index), "yes" if index in blocked else "no")

    Console().print(table)
