"""Show every process, the step, who holds training, the last save and the next one."""

import click

from megalith.cli.ctl.answers import errors_as_one_line
from megalith.cli.ctl.calls import ControllerCall, command
from megalith.control import ClusterStatus, Controller
from megalith.runtime.config.commands import Option

_WATCH = Option(
    ["--watch"], is_flag=True, help="Show it again and again, until the job ends or Ctrl-C."
)
_EVERY = Option(
    ["--every-s"],
    type=click.FloatRange(min=0.1),
    default=1.0,
    metavar="SECONDS",
    help="Seconds between two looks of --watch.  [default: 1]",
)


@command(_WATCH, _EVERY)
def status(call: ControllerCall, watch: bool, every_s: float) -> None:
    if watch:
        from megalith.cli.ctl.watching import show_again_and_again

        with errors_as_one_line(call.name), call.job() as job:
            show_again_and_again(job.status, every_s, call.is_json)
        return

    call.answer(Controller.status, _show)


def _show(shown: ClusterStatus) -> None:
    from megalith.cli.screen.output import print_status

    print_status(shown)
