"""What `up` and `train` do when they are told to stop: save what was trained, say what is not."""

import time
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console

from megalith.cli.screen.output import print_line
from megalith.cli.train.news import News
from megalith.cli.train.stop_signals import StopSignals
from megalith.control import Controller, SaveResult
from megalith.errors import MegalithError, SaveFailed
from megalith.runtime.counting import counted

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 30.0  # a save that fails costs the disk and the ps as much as one that does not


def leave(
    job: Controller,
    news: News,
    console: Console,
    signals: StopSignals,
    *,
    saves: bool,
    timeout_s: float,
    heartbeat_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Save, unless `saves` is off or there is nothing to save; whether all that was to be is saved.

    A ps reports its pushes once in `heartbeat_s`. So if nothing seems to be new, this waits for two
    reports: a program may have pushed a moment ago.

    Training is held from then on, so that nothing is trained after the save. A save that fails is
    tried again until `timeout_s` is over: somebody may make room on a full disk. Another Ctrl-C
    ends the save, once it is said that it does.
    """
    signals.hold()
    is_saved = True
    try:
        _look_once_more(job, news)
        if saves:
            tries = _Tries(job, console, timeout_s, clock)
            is_saved = _save(job, news, console, signals, tries, heartbeat_s)
    except KeyboardInterrupt:
        signals.hold()
        is_saved = False
        print_line(console, "stopping at once", "yellow")

    farewell = news.farewell()
    print_line(console, f"stopping; {farewell}" if farewell else "stopping")
    return is_saved


def _look_once_more(job: Controller, news: News) -> None:
    with suppress(MegalithError):  # then what was last heard is said
        news.tell(job.status())


class _Tries:
    """Saves until one succeeds, or until `timeout_s` is over."""

    def __init__(
        self,
        job: Controller,
        console: Console,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.timeout_s = timeout_s
        self._job = job
        self._console = console
        self._clock = clock

    def save(self) -> SaveResult:
        """SaveFailed is that of the last try. Other errors are not tried again."""
        deadline = self._clock() + self.timeout_s
        pause_s = _FIRST_PAUSE_S

        while True:
            left_s = deadline - self._clock()
            try:
                return self._job.save(timeout_s=left_s, hold=True, is_last=True)
            except SaveFailed as error:
                left_s = deadline - self._clock()
                if left_s <= pause_s:
                    raise

                self._say(error, left_s)

            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _say(self, error: SaveFailed, left_s: float) -> None:
        print_line(
            self._console,
            f"the last save failed: {error}; it is tried again for {left_s:.0f} s; "
            "Ctrl-C stops at once, without it",
            "red",
        )


def _save(
    job: Controller,
    news: News,
    console: Console,
    signals: StopSignals,
    tries: _Tries,
    heartbeat_s: float,
) -> bool:
    try:
        before = job.status()
        if not before.outcome and not before.unsaved:
            time.sleep(2 * heartbeat_s)
            before = job.status()

        news.tell(before)  # what was restored comes before what is saved
        if before.outcome or not before.unsaved:
            return True

        what = before.unsaved.removesuffix(" of this job: there is no checkpoint")
        print_line(
            console,
            f"saving the {what}, for at most {tries.timeout_s:.0f} s; Ctrl-C again stops at once",
        )
        signals.listen()
        saved = tries.save()
        signals.hold()
        rows = counted(saved.rows, "row")
        print_line(console, f"saved {saved.path}: {rows} in {saved.seconds:.1f} s")
        after = job.status()
        news.tell(after)
        return not after.unsaved  # a part of a model is saved apart, and makes up for nothing
    except MegalithError as error:
        print_line(console, f"the last save failed: {error}", "red")
        return False
