"""Drop expired rows now, instead of at the next --expire-every-s.

A row is expired by the time of its table's data, not by the clock.
"""

from megalith.cli.ctl.answers import answer_with
from megalith.cli.ctl.calls import ControllerCall, command
from megalith.runtime.counting import counted


@command()
def expire(call: ControllerCall) -> None:
    with call.cluster() as cluster:
        answer_with(call.name, call.is_json, cluster.expire, _show)


def _show(dropped: dict[str, int]) -> None:
    for name, rows in dropped.items():
        dropped_rows = counted(rows, "row")
        print(f"{name}: {dropped_rows} dropped")
