"""Serving replicas: pin, unpin and rollback."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import click

from megalith.cli.ctl.answers import answer_with, errors_as_one_line
from megalith.cli.ctl.calls import ControllerCall
from megalith.cli.ctl.options import job_options
from megalith.cli.screen.words import duration
from megalith.control import ReplicaControl, ReplicaReport, ReplicaVersion
from megalith.errors import InvalidRequest, MegalithError
from megalith.runtime.config.commands import Command, Group, LazyCommand, Option

_Ask = Callable[[ReplicaControl], ReplicaVersion]


def _one(name: str, summary: str) -> LazyCommand:
    return LazyCommand(name, f"{__name__}:{name}", summary)


replicas = Group(
    "replicas",
    sections={
        "Drive them": (
            _one("pin", "Stay with what is served now, whatever is trained."),
            _one("rollback", "Serve an earlier checkpoint."),
            _one("unpin", "Follow the job again, after pin or rollback."),
        ),
    },
    help=__doc__,
    params=job_options(),
    examples=(
        "megalith ctl replicas pin",
        "megalith ctl replicas rollback model.ckpt-1200 --index 0",
        "megalith ctl replicas unpin",
    ),
)

_INDEX = Option(
    ["--index"],
    type=int,
    multiple=True,
    metavar="N",
    help="Index of a replica; may be given several times.  [default: all replicas of the job]",
)
_WAIT = Option(
    ["--wait-s"],
    type=click.FloatRange(min=0),
    default=600.0,
    metavar="SECONDS",
    help="Seconds that a replica may take to answer.  [default: 600]",
)


def _command(name: str, *own: click.Parameter) -> Callable[[Callable[..., _Ask]], Command]:
    """Make a function a command: it gets its own arguments, and says what a replica is asked."""

    def register(function: Callable[..., _Ask]) -> Command:
        names = [param.name for param in own]

        def run(index: tuple[int, ...], wait_s: float, **given: Any) -> None:
            call = ControllerCall(click.get_current_context())
            own_values = [given[each] for each in names if each is not None]
            ask = function(*own_values)

            failures: dict[str, MegalithError] = {}

            def asked() -> dict[str, ReplicaVersion]:
                return _asked(call, index, wait_s, ask, failures)

            answer_with(call.name, call.is_json, asked, _show)
            with errors_as_one_line(call.name):
                _check_none(failures)

        params = [*own, _INDEX, _WAIT, *job_options()]
        return Command(name, callback=run, params=params, help=function.__doc__)

    return register


@_command("pin")
def pin() -> _Ask:
    """Stay with what is served now, whatever is trained.

    The replica goes on answering, its staleness grows, and the status of the job says that it is
    pinned. A replica that is started again is not pinned. While a ps sends it all rows anew, it
    refuses: pin it again when its staleness is small.
    """
    return ReplicaControl.pin


@_command("rollback", click.Argument(["checkpoint"]))
def rollback(checkpoint: str) -> _Ask:
    """Serve an earlier checkpoint.

    CHECKPOINT is its name as `megalith ckpt ls` shows it, or a path or URL that the replica can
    read. The replica serves it until `unpin`, and then follows the job again.
    """
    return lambda replica: replica.roll_back(checkpoint)


@_command("unpin")
def unpin() -> _Ask:
    """Follow the job again, after pin or rollback."""
    return ReplicaControl.unpin


def _asked(
    call: ControllerCall,
    wanted: tuple[int, ...],
    wait_s: float,
    ask: _Ask,
    failures: dict[str, MegalithError],
) -> dict[str, ReplicaVersion]:
    """Ask all at once: one that is dead or hangs keeps no other one from it."""

    def asked(report: ReplicaReport) -> ReplicaVersion | None:
        try:
            with closing(ReplicaControl(report.address, wait_s)) as replica:
                return ask(replica)
        except MegalithError as error:
            failures[report.name] = error
            return None

    reports = _reports(call, wanted)
    with ThreadPoolExecutor(len(reports)) as threads:
        found = list(threads.map(asked, reports))

    answers = {}
    for report, version in zip(reports, found, strict=True):
        if version is not None:
            answers[report.name] = version

    return answers


def _check_none(failures: Mapping[str, MegalithError]) -> None:
    """Raise if there are any, of the class of the first."""
    if not failures:
        return

    said = [f"{name}: {failures[name]}" for name in sorted(failures)]
    first = failures[min(failures)]
    raise type(first)("; ".join(said))


def _reports(call: ControllerCall, wanted: tuple[int, ...]) -> list[ReplicaReport]:
    """The replicas that are meant; InvalidRequest if one of them is not there."""
    with call.job() as job:
        status = job.status()

    known = {}
    for each in status.replicas:
        known[each.report.index] = each.report

    if not known:
        raise InvalidRequest("no replica follows this job; start one with megalith replica")

    missing = [index for index in wanted if index not in known]
    if missing:
        raise InvalidRequest(
            f"no replica of index {missing[0]} follows this job; there are {sorted(known)}"
        )

    chosen = wanted or sorted(known)
    return [known[index] for index in chosen]


def _show(answers: dict[str, ReplicaVersion]) -> None:
    for name, version in answers.items():
        said = _said(version)
        print(f"{name} {said}")


def _said(version: ReplicaVersion) -> str:
    age = duration(version.staleness_s)
    if version.checkpoint:
        return f"serves {version.checkpoint}, {age} old, until it is unpinned"

    numbers = ", ".join(str(number) for number in version.versions)
    if version.is_pinned:
        return f"stays at version {numbers}, {age} old, until it is unpinned"

    return f"follows the job again, from what it had {age} ago"
