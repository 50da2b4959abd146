"""The job as its platform sees it: kill, succeed, savepoints, restarts."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import click

from megalith.checkpoint.storage.location import absolute
from megalith.cli.ctl.answers import answer_with, say
from megalith.cli.ctl.options import GivenOptions, application_options, directory_option
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR, first_named, named_in
from megalith.control import (
    Application,
    AppMaster,
    Controller,
    SavepointStatus,
    SupervisedProcess,
)
from megalith.errors import MegalithError, SaveFailed
from megalith.runtime.config.commands import Command, Group, LazyCommand, Option, fail
from megalith.runtime.counting import counted

if TYPE_CHECKING:
    from rich.table import Table

R = TypeVar("R")

_ASK_S = 1.0  # for the controller, which may hang: that must not keep the job alive
_REASON_HELP = "Why, for whoever looks later."


def _one(name: str, summary: str) -> LazyCommand:
    return LazyCommand(name, f"{__name__}:{name.replace('-', '_')}", summary)


app = Group(
    "app",
    sections={
        "Look at a job": (
            _one("status", "Show how the application stands, its processes and savepoints."),
            _one("savepoint-status", "Show how a savepoint is doing."),
        ),
        "Drive it": (
            _one("kill", "End the job as a failure; every process exits. Nothing is saved."),
            _one("succeed", "End the job as a success; every process exits. Nothing is saved."),
            _one("suspend", "Hold training at the barrier."),
            _one("resume", "End the hold of the platform; without other holds, training goes on."),
            _one("savepoint", "Begin a savepoint: a checkpoint taken in the background."),
            _one("restart", "Have one process that is down started again."),
            _one("restart-policy", "Set how often each process that died is started again."),
        ),
    },
    help=__doc__,
    params=application_options(),
    examples=("megalith ctl app restart worker-1", "megalith ctl app savepoint --wait"),
)


class AppMasterCall:
    """One call of a command to the AppMaster, with the options that all of them take."""

    def __init__(self, context: click.Context) -> None:
        self._given = GivenOptions(context)
        self._name = self._given.command

    def answer(self, ask: Callable[[AppMaster], R], show: Callable[[Any], None]) -> None:
        """Ask the AppMaster, then show the answer; an error is one line and exit status 1."""
        address, directory = self._which_job()
        master = AppMaster(address, directory, self._given.timeout_s)

        with closing(master):
            answer_with(self._name, self._given.is_json, lambda: ask(master), show)

    def _which_job(self) -> tuple[str | None, str | None]:
        """(The AppMaster's address, the model directory), one of them None."""
        by_flags = self._given.pairs("appmaster", "model_dir")
        named = first_named(*by_flags, named_in(os.environ, "appmaster"))
        if named is not None:
            return named

        if self._given.discovery.is_used:
            # The default directory would be another job's.
            fail(
                "an AppMaster is in no discovery back end: name it with --appmaster or --model-dir"
            )

        return None, DEFAULT_MODEL_DIR


def command(name: str, *own: click.Parameter) -> Callable[[Callable[..., None]], Command]:
    """Make a function a command: it gets an AppMasterCall, and after it its own options."""

    def register(function: Callable[..., None]) -> Command:
        names = [param.name for param in own]

        def run(**given: Any) -> None:
            call = AppMasterCall(click.get_current_context())
            arguments = {name: given[name] for name in names if name is not None}
            function(call, **arguments)

        params = [*own, *application_options()]
        return Command(name, callback=run, params=params, help=function.__doc__)

    return register


def _reason(default: str) -> Option:
    help = f"{_REASON_HELP}  [default: {default}]"
    return Option(["--reason"], default=default, metavar="TEXT", help=help)


def _grace() -> Option:
    return Option(
        ["--grace-s"],
        type=click.FloatRange(min=0),
        default=20.0,
        metavar="SECONDS",
        help="Seconds that the processes get to end.  [default: 20]",
    )


@command("status")
def status(call: AppMasterCall) -> None:
    """Show how the application stands, its processes and savepoints."""
    call.answer(AppMaster.status, _show)


@command(
    "kill",
    _reason("killed by an operator"),
    Option(
        ["--exit-code"],
        type=int,
        default=1,
        metavar="N",
        help="What the application reports as its exit code.  [default: 1]",
    ),
    _grace(),
)
def kill(call: AppMasterCall, reason: str, exit_code: int, grace_s: float) -> None:
    """End the job as a failure; every process exits. Nothing is saved.

    Works also when the controller hangs, if `up` supervises it.
    """

    def ask(master: AppMaster) -> dict[str, Any]:
        unsaved = _unsaved(master)
        master.kill(reason, exit_code=exit_code, grace_s=grace_s)
        return {"ok": True, "unsaved": unsaved}

    call.answer(ask, lambda answer: _show_ended("the job is killed", answer))


@command("succeed", _reason("ended by an operator"), _grace())
def succeed(call: AppMasterCall, reason: str, grace_s: float) -> None:
    """End the job as a success; every process exits. Nothing is saved.

    `megalith ctl app savepoint --wait` saves first.
    """

    def ask(master: AppMaster) -> dict[str, Any]:
        unsaved = _unsaved(master)
        master.succeed(reason, grace_s=grace_s)
        return {"ok": True, "unsaved": unsaved}

    call.answer(ask, lambda answer: _show_ended("the job has succeeded", answer))


@command("suspend")
def suspend(call: AppMasterCall) -> None:
    """Hold training at the barrier."""
    call.answer(AppMaster.suspend, say("training is held"))


@command("resume")
def resume(call: AppMasterCall) -> None:
    """End the hold of the platform; without other holds, training goes on."""
    call.answer(AppMaster.resume, say("training goes on"))


@command(
    "savepoint",
    directory_option(),
    Option(["--wait"], is_flag=True, help="Wait until it is complete; a failed one is an error."),
    Option(
        ["--wait-s"],
        type=click.FloatRange(min=0),
        default=3600.0,
        metavar="SECONDS",
        help="Longest wait.  [default: 3600]",
    ),
)
def savepoint(call: AppMasterCall, directory: str, wait: bool, wait_s: float) -> None:
    """Begin a savepoint: a checkpoint taken in the background.

    The id that is printed is for `savepoint-status`.
    """

    def ask(master: AppMaster) -> SavepointStatus:
        where = absolute(directory) if directory else ""
        savepoint_id = master.create_savepoint(where)
        if not wait:
            return master.savepoint(savepoint_id)

        done = master.wait_for_savepoint(savepoint_id, wait_s)
        if done.state != "succeeded":
            raise SaveFailed(f"savepoint {savepoint_id} failed: {done.message}")

        return done

    call.answer(ask, _show_savepoint)


@command("savepoint-status", click.Argument(["savepoint_id"], metavar="SAVEPOINT"))
def savepoint_status(call: AppMasterCall, savepoint_id: str) -> None:
    """Show how a savepoint is doing."""

    def ask(master: AppMaster) -> SavepointStatus:
        return master.savepoint(savepoint_id)

    call.answer(ask, _show_savepoint)


@command(
    "restart-policy",
    click.Argument(["max_restarts"], type=click.IntRange(min=0), metavar="RESTARTS"),
)
def restart_policy(call: AppMasterCall, max_restarts: int) -> None:
    """Set how often each process that died is started again.

    0 RESTARTS: no process is started again.
    """

    def ask(master: AppMaster) -> None:
        master.set_max_restarts(max_restarts)

    text = "no process is started again"
    if max_restarts:
        text = f"each process is started again up to {counted(max_restarts, 'time')}"

    call.answer(ask, say(text))


@command("restart", click.Argument(["process"]))
def restart(call: AppMasterCall, process: str) -> None:
    """Have one process that is down started again.

    PROCESS is its name, as `status` shows it: ps-0, worker-1, ... The restart policy does not
    matter.
    """

    def ask(master: AppMaster) -> None:
        master.restart(process)

    call.answer(ask, say(f"{process} will be started again"))


def _unsaved(master: AppMaster) -> str:
    """What no checkpoint holds, for people; empty also if the controller does not say it."""
    try:
        address = master.status().controller
        if not address:
            return ""

        with closing(Controller(address, None, _ASK_S)) as job:
            return job.status().unsaved
    except MegalithError:
        return ""


def _show_ended(how: str, answer: dict[str, Any]) -> None:
    print(f"{how}; not saved: {answer['unsaved']}" if answer["unsaved"] else how)


def _show(shown: Application) -> None:
    from rich.console import Console

    console = Console()
    state = "RUNNING"
    if shown.final_status != "UNDEFINED":
        state = f"{shown.final_status}, exit code {shown.exit_code}: {shown.reason}"

    console.print(f"[bold]{shown.app_id}[/bold] {state}", highlight=False, soft_wrap=True)

    progress = f"{shown.phase}, step {shown.global_step}, {shown.progress:.0%} done"
    where = shown.controller or "not found"
    console.print(f"{progress}, controller {where}", highlight=False)

    policy = f"up to {counted(shown.max_restarts, 'restart')} of each process"
    if not shown.is_supervised:
        policy += "; nobody supervises the processes"

    console.print(policy, highlight=False)

    if shown.processes:
        console.print(_processes(shown.processes))

    for each in shown.savepoints:
        _show_savepoint(each)


def _processes(processes: Sequence[SupervisedProcess]) -> "Table":
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table("process", "pid", "state", "restarts", box=SIMPLE, pad_edge=False)
    for process in processes:
        restarts = process.starts - 1
        table.add_row(process.name, str(process.pid), _state(process), str(restarts))

    return table


def _state(process: SupervisedProcess) -> str:
    status = process.exit_status
    if process.is_running:
        return "[green]running[/green]"
    if status == 0:
        return "ended, exit status 0"

    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"[red]{how}[/red]"


def _show_savepoint(shown: SavepointStatus) -> None:
    where_or_why = shown.path or shown.message
    print(f"savepoint {shown.id} {shown.state} {where_or_why}")
