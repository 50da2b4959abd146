"""What `up` and `train` do when they are told to stop: save what was trained, say what is not."""

import time
from contextlib import suppress

from rich.console import Console

from megalith.cli.news import News
from megalith.cli.output import print_line
from megalith.control import Controller
from megalith.errors import MegalithError


def leave(
    job: Controller,
    news: News,
    console: Console,
    *,
    saves: bool,
    timeout_s: float,
    heartbeat_s: float,
) -> bool:
    """Save, unless `saves` is off or there is nothing to save; whether all that was to be is saved.

    A ps reports its pushes once in `heartbeat_s`. So if nothing seems to be new, this waits for two
    reports: a program may have pushed a moment ago.

    Training is held from then on, so that nothing is trained after the save. Another Ctrl-C ends
    the save.
    """
    is_saved = True
    try:
        _look_once_more(job, news)
        if saves:
            is_saved = _save(job, news, console, timeout_s, heartbeat_s)
    except KeyboardInterrupt:
        is_saved = False
        print_line(console, "stopping at once", "yellow")

    farewell = news.farewell()
    print_line(console, f"stopping; {farewell}" if farewell else "stopping")
    return is_saved


def _look_once_more(job: Controller, news: News) -> None:
    with suppress(MegalithError):  # then what was last heard is said
        news.tell(job.status())


def _save(
    job: Controller, news: News, console: Console, timeout_s: float, heartbeat_s: float
) -> bool:
    try:
        before = job.status()
        if not before.outcome and not before.unsaved:
            time.sleep(2 * heartbeat_s)
            before = job.status()

        if before.outcome or not before.unsaved:
            return True

        what = before.unsaved.removesuffix(" of this job: there is no checkpoint")
        print_line(
            console,
            f"saving the {what}, for at most {timeout_s:.0f} s; Ctrl-C again stops at once",
        )
        saved = job.save(timeout_s=timeout_s, hold=True, is_last=True)
        print_line(console, f"saved {saved.path}: {saved.rows:,} rows in {saved.seconds:.1f} s")
        after = job.status()
        news.tell(after)
        return not after.unsaved  # a part of a model is saved apart, and makes up for nothing
    except MegalithError as error:
        print_line(console, f"the last save failed: {error}", "red")
        return False
