"""`megalith ctl status --watch`: the status again and again.

It goes on when the controller is restarted.
"""

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from megalith.cli.screen.columns import room
from megalith.cli.screen.output import print_status, status_view
from megalith.control import ClusterStatus
from megalith.errors import MegalithError, PeerUnreachable
from megalith.runtime.json_text import json_text

_AWAY_S = 30.0  # longer than a controller takes to be started again


def show_again_and_again(
    ask: Callable[[], ClusterStatus],
    every_s: float,
    as_json: bool,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Until the job has an outcome or Ctrl-C.

    On a terminal the status is redrawn. Elsewhere, and as JSON, it is repeated.

    A controller that does not answer is said and asked again, as it may be started again. When it
    has been away for half a minute, that is the end: PeerUnreachable says how the job was last
    seen.
    """
    ask = _until_gone(ask, clock)
    console = Console()

    if as_json:
        _repeat(
            ask,
            every_s,
            sleep,
            lambda status: print(json_text(status), flush=True),
        )
    elif not console.is_terminal:
        _repeat(ask, every_s, sleep, lambda status: print_status(status, console))
    else:
        with Live(console=console, auto_refresh=False) as live:
            _repeat(
                ask,
                every_s,
                sleep,
                lambda status: live.update(status_view(status, room(console)), refresh=True),
                lambda error: live.update(Text(str(error), style="red"), refresh=True),
            )


class _Gone(Exception):
    """The controller has been away for too long."""


def _until_gone(
    ask: Callable[[], ClusterStatus], clock: Callable[[], float]
) -> Callable[[], ClusterStatus]:
    """`ask`, but a controller that has not answered for too long is _Gone."""
    seen: ClusterStatus | None = None
    seen_at = clock()

    def ask_on() -> ClusterStatus:
        nonlocal seen, seen_at
        try:
            seen = ask()
            seen_at = clock()
            return seen
        except MegalithError as error:
            if clock() - seen_at < _AWAY_S:
                raise

            raise _Gone(
                f"the controller has not answered for {_AWAY_S:.0f} s ({error}); {_last_seen(seen)}"
            ) from None

    return ask_on


def _last_seen(status: ClusterStatus | None) -> str:
    if status is None:
        return "it was never seen"

    unsaved = f"; not saved: {status.unsaved}" if status.unsaved else ""
    return f"the job was last seen {status.phase} at step {status.global_step}{unsaved}"


def _repeat(
    ask: Callable[[], ClusterStatus],
    every_s: float,
    sleep: Callable[[float], None],
    show: Callable[[ClusterStatus], None],
    complain: Callable[[MegalithError], None] = lambda error: print(
        f"megalith ctl status: {error}", file=sys.stderr
    ),
) -> None:
    try:
        while True:
            try:
                status = ask()
                show(status)
                if status.outcome:
                    return
            except _Gone as gone:
                raise PeerUnreachable(str(gone)) from None
            except MegalithError as error:
                complain(error)

            sleep(every_s)
    except KeyboardInterrupt:
        return
