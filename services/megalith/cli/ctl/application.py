"""`megalith ctl app`: the job as its resource manager sees it, through the AppMaster."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from megalith.cli.ctl import group
from megalith.cli.ctl.answers import answer_with, errors_as_one_line, say
from megalith.cli.ctl.options import (
    AppMasterOption,
    DirectoryOption,
    JsonOption,
    ModelDirOption,
    with_options_of,
)
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR, first_named, named_in
from megalith.control import Application, AppMaster, SavepointStatus, SupervisedProcess
from megalith.errors import InvalidSetting, SaveFailed

R = TypeVar("R")

_HELP = (
    "The job as its resource manager sees it: "
    "status, kill, succeed, savepoints, restarts of processes."
)
app = typer.Typer(no_args_is_help=True, help=_HELP)
group.app.add_typer(app, name="app")

ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for whoever looks later.")]
ExitCodeOption = Annotated[int, typer.Option(help="What the application reports as its exit code.")]
GraceOption = Annotated[
    float, typer.Option("--grace-s", min=0, help="Seconds that the processes get to end.")
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until it is complete; a failed one is an error.")
]
LongestWaitOption = Annotated[float, typer.Option(min=0, help="Longest wait, in seconds.")]
SavepointArgument = Annotated[str, typer.Argument(help="As `savepoint` printed it.")]
MaxRestartsArgument = Annotated[
    int, typer.Argument(min=0, help="Restarts of each process; 0 = none.")
]
ProcessArgument = Annotated[
    str, typer.Argument(help="Its name, as `status` shows it: ps-0, worker-1, ...")
]


@dataclass(frozen=True, slots=True)
class AppOptions:
    """Options of `megalith ctl app` itself; those of a sub-command win."""

    appmaster: str
    model_dir: str
    as_json: bool
    timeout_s: float
    is_discovery_used: bool


@app.callback(help=_HELP)
def application(
    context: typer.Context,
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    outer: group.CtlOptions = context.obj
    context.obj = AppOptions(
        appmaster,
        model_dir or outer.model_dir,
        as_json or outer.as_json,
        outer.timeout_s,
        outer.discovery.is_used,
    )


@dataclass(frozen=True, slots=True)
class AppMasterCall:
    """One call of a command to the AppMaster, with the options that all of them take."""

    context: typer.Context
    appmaster: AppMasterOption = ""
    model_dir: ModelDirOption = ""
    as_json: JsonOption = False

    def answer(self, ask: Callable[[AppMaster], R], show: Callable[[Any], None]) -> None:
        """Ask the AppMaster, then show the answer; an error is one line and exit status 1."""
        target: AppOptions = self.context.obj
        name = f"ctl app {self.context.info_name}"
        is_json = self.as_json or target.as_json
        with errors_as_one_line(name):
            address, directory = self._which_job(target)

        master = AppMaster(address, directory, target.timeout_s)
        with closing(master):
            answer_with(name, is_json, lambda: ask(master), show)

    def _which_job(self, target: AppOptions) -> tuple[str | None, str | None]:
        """(The AppMaster's address, the model directory), one of them None."""
        named = first_named(
            (self.appmaster, self.model_dir),
            (target.appmaster, target.model_dir),
            named_in(os.environ, "appmaster"),
        )

        if named is not None:
            return named

        if target.is_discovery_used:
            # The default directory would be another job's.
            raise InvalidSetting(
                "an AppMaster is in no discovery back end: name it with --appmaster or --model-dir"
            )

        return None, DEFAULT_MODEL_DIR


def command(name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command: it gets an AppMasterCall, and after it its own options."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(with_options_of(AppMasterCall, function))
        return function

    return register


@command()
def status(call: AppMasterCall) -> None:
    """Show the application: how it stands, its processes and their restarts, its savepoints."""
    call.answer(AppMaster.status, _show)


@command()
def kill(
    call: AppMasterCall,
    reason: ReasonOption = "killed by an operator",
    exit_code: ExitCodeOption = 1,
    grace_s: GraceOption = 20.0,
) -> None:
    """End the job as a failure; every process exits.

    Works also when the controller hangs, if `up` supervises it.
    """

    def ask(master: AppMaster) -> None:
        master.kill(reason, exit_code=exit_code, grace_s=grace_s)

    call.answer(ask, say("the job is killed"))


@command()
def succeed(
    call: AppMasterCall,
    reason: ReasonOption = "ended by an operator",
    grace_s: GraceOption = 20.0,
) -> None:
    """End the job as a success; every process exits. Nothing is saved: take a savepoint first."""

    def ask(master: AppMaster) -> None:
        master.succeed(reason, grace_s=grace_s)

    call.answer(ask, say("the job has succeeded"))


@command()
def suspend(call: AppMasterCall) -> None:
    """Hold training at the barrier."""
    call.answer(AppMaster.suspend, say("training is held"))


@command()
def resume(call: AppMasterCall) -> None:
    """Let held training go on."""
    call.answer(AppMaster.resume, say("training goes on"))


@command()
def savepoint(
    call: AppMasterCall,
    directory: DirectoryOption = "",
    wait: WaitOption = False,
    wait_s: LongestWaitOption = 3600.0,
) -> None:
    """Begin a savepoint: a checkpoint taken in the background, followed by its id."""

    def ask(master: AppMaster) -> SavepointStatus:
        where = os.path.abspath(directory) if directory else ""
        savepoint_id = master.create_savepoint(where)
        if not wait:
            return master.savepoint(savepoint_id)

        done = master.wait_for_savepoint(savepoint_id, wait_s)
        if done.state != "succeeded":
            raise SaveFailed(f"savepoint {savepoint_id} failed: {done.message}")

        return done

    call.answer(ask, _show_savepoint)


@command("savepoint-status")
def savepoint_status(call: AppMasterCall, savepoint_id: SavepointArgument) -> None:
    """Show how a savepoint is doing."""

    def ask(master: AppMaster) -> SavepointStatus:
        return master.savepoint(savepoint_id)

    call.answer(ask, _show_savepoint)


@command("restart-policy")
def restart_policy(call: AppMasterCall, max_restarts: MaxRestartsArgument) -> None:
    """Set how often each process that died is started again."""

    def ask(master: AppMaster) -> None:
        master.set_max_restarts(max_restarts)

    text = "no process is started again"
    if max_restarts:
        text = f"each process is started again up to {max_restarts} times"

    call.answer(ask, say(text))


@command()
def restart(call: AppMasterCall, process: ProcessArgument) -> None:
    """Have one process that is down started again, whatever the policy says."""

    def ask(master: AppMaster) -> None:
        master.restart(process)

    call.answer(ask, say(f"{process} will be started again"))


def _show(shown: Application) -> None:
    console = Console()
    state = "RUNNING"
    if shown.final_status != "UNDEFINED":
        state = f"{shown.final_status}, exit code {shown.exit_code}: {shown.reason}"

    console.print(f"[bold]{shown.app_id}[/bold] {state}", highlight=False, soft_wrap=True)

    progress = f"{shown.phase}, step {shown.global_step}, {shown.progress:.0%} done"
    where = shown.controller or "not found"
    console.print(f"{progress}, controller {where}", highlight=False)

    policy = f"up to {shown.max_restarts} restarts of each process"
    if not shown.is_supervised:
        policy += "; nobody supervises the processes"

    console.print(policy, highlight=False)

    if shown.processes:
        console.print(_processes(shown.processes))

    for each in shown.savepoints:
        _show_savepoint(each)


def _processes(processes: Sequence[SupervisedProcess]) -> Table:
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
    print(f"savepoint {shown.id} {shown.state}", shown.path or shown.message, sep=" ")
