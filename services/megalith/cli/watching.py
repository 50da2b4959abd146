"""`megalith ctl status --watch`: the status again and again, also over a restart of the controller."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from megalith.cli.output import print_status, status_view
from megalith.client import ClusterStatus
from megalith.wire.errors import MegalithError


def watch(
    ask: Callable[[], ClusterStatus], every_s: float, as_json: bool, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Until the job has an outcome or Ctrl-C. On a terminal the status is redrawn; else, and as JSON, it is repeated.

    A controller that does not answer is said and asked again.
    """
    console = Console()
    if as_json:
        _repeat(ask, every_s, sleep, lambda status: print(json.dumps(dataclasses.asdict(status)), flush=True))
    elif not console.is_terminal:
        _repeat(ask, every_s, sleep, lambda status: print_status(status, console))
    else:
        with Live(console=console, auto_refresh=False) as live:
            _repeat(
                ask,
                every_s,
                sleep,
                lambda status: live.update(status_view(status), refresh=True),
                lambda error: live.update(Text(str(error), style="red"), refresh=True),
            )


def _repeat(
    ask: Callable[[], ClusterStatus],
    every_s: float,
    sleep: Callable[[float], None],
    show: Callable[[ClusterStatus], None],
    complain: Callable[[MegalithError], None] = lambda error: print(f"megalith ctl status: {error}", file=sys.stderr),
) -> None:
    try:
        while True:
            try:
                status = ask()
                show(status)
                if status.outcome:
                    return
            except MegalithError as error:
                complain(error)
            sleep(every_s)
    except KeyboardInterrupt:
        return
