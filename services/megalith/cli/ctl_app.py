"""`megalith ctl app`: the job as its resource manager sees it, through the AppMaster."""

import dataclasses
import os
from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from megalith.cli import ctl
from megalith.cli.ctl import JsonOption, ModelDirOption
from megalith.client import Application, AppMaster, Savepoint, SupervisedProcess
from megalith.wire.errors import InvalidSetting, SaveFailed

R = TypeVar("R")

_HELP = "The job as its resource manager sees it: status, kill, succeed, savepoints, restarts of processes."
app = typer.Typer(no_args_is_help=True, help=_HELP)

_APPMASTER_HELP = "host:port of the AppMaster; without it, found through the model directory (environment: MEGALITH_CTL_APPMASTER)."
AppMasterOption = Annotated[str, typer.Option("--appmaster", help=_APPMASTER_HELP)]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for whoever looks later.")]
GraceOption = Annotated[
    float, typer.Option("--grace-s", min=0, help="Seconds that the processes get to end.")
]


@dataclasses.dataclass
class Target:
    """Options of `megalith ctl app` itself; those of a sub-command win."""

    appmaster: str
    model_dir: str
    as_json: bool
    timeout_s: float
    is_discovery_used: bool


@app.callback()
def application(
    context: typer.Context,
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    group: ctl.Target = context.obj
    context.obj = Target(
        appmaster,
        model_dir or group.model_dir,
        as_json or group.as_json,
        group.timeout_s,
        group.discovery.is_used,
    )


@app.command()
def status(
    context: typer.Context,
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the application: how it stands, its processes and their restarts, its savepoints."""
    _run(context, appmaster, model_dir, as_json, lambda master: master.status(), _show)


@app.command()
def kill(
    context: typer.Context,
    reason: ReasonOption = "killed by an operator",
    exit_code: Annotated[
        int, typer.Option(help="What the application reports as its exit code.")
    ] = 1,
    grace_s: GraceOption = 20.0,
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """End the job as a failure; every process exits. Works also when the controller hangs, if `up` supervises it."""
    _run(
        context,
        appmaster,
        model_dir,
        as_json,
        lambda master: master.kill(reason, exit_code=exit_code, grace_s=grace_s),
        ctl.say("the job is killed"),
    )


@app.command()
def succeed(
    context: typer.Context,
    reason: ReasonOption = "ended by an operator",
    grace_s: GraceOption = 20.0,
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """End the job as a success; every process exits. Nothing is saved: take a savepoint first."""
    _run(
        context,
        appmaster,
        model_dir,
        as_json,
        lambda master: master.succeed(reason, grace_s=grace_s),
        ctl.say("the job has succeeded"),
    )


@app.command()
def suspend(
    context: typer.Context,
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Hold training at the barrier."""
    _run(
        context,
        appmaster,
        model_dir,
        as_json,
        lambda master: master.suspend(),
        ctl.say("training is held"),
    )


@app.command()
def resume(
    context: typer.Context,
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let held training go on."""
    _run(
        context,
        appmaster,
        model_dir,
        as_json,
        lambda master: master.resume(),
        ctl.say("training goes on"),
    )


@app.command()
def savepoint(
    context: typer.Context,
    directory: Annotated[
        str, typer.Option(help="Where to save, not another job's; empty = its model directory.")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is complete; a failed one is an error.")
    ] = False,
    wait_s: Annotated[float, typer.Option(min=0, help="Longest wait, in seconds.")] = 3600.0,
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Begin a savepoint: a checkpoint taken in the background, followed by its id."""

    def ask(master: AppMaster) -> Savepoint:
        savepoint_id = master.create_savepoint(os.path.abspath(directory) if directory else "")
        if not wait:
            return master.savepoint(savepoint_id)
        done = master.wait_for_savepoint(savepoint_id, wait_s)
        if done.state != "succeeded":
            raise SaveFailed(f"savepoint {savepoint_id} failed: {done.message}")
        return done

    _run(context, appmaster, model_dir, as_json, ask, _show_savepoint)


@app.command("savepoint-status")
def savepoint_status(
    context: typer.Context,
    savepoint_id: Annotated[str, typer.Argument(help="As `savepoint` printed it.")],
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show how a savepoint is doing."""
    _run(
        context,
        appmaster,
        model_dir,
        as_json,
        lambda master: master.savepoint(savepoint_id),
        _show_savepoint,
    )


@app.command("restart-policy")
def restart_policy(
    context: typer.Context,
    max_restarts: Annotated[int, typer.Argument(min=0, help="Restarts of each process; 0 = none.")],
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set how often each process that died is started again."""
    text = (
        f"each process is started again up to {max_restarts} times"
        if max_restarts
        else "no process is started again"
    )
    _run(
        context,
        appmaster,
        model_dir,
        as_json,
        lambda master: master.set_max_restarts(max_restarts),
        ctl.say(text),
    )


@app.command()
def restart(
    context: typer.Context,
    process: Annotated[
        str, typer.Argument(help="Its name, as `status` shows it: ps-0, worker-1, ...")
    ],
    appmaster: AppMasterOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Have one process that is down started again, whatever the policy says."""
    say = ctl.say(f"{process} will be started again")
    _run(context, appmaster, model_dir, as_json, lambda master: master.restart(process), say)


def _run(
    context: typer.Context,
    appmaster: str,
    model_dir: str,
    as_json: bool,
    ask: Callable[[AppMaster], R],
    show: Callable[[Any], None],
) -> None:
    group: Target = context.obj
    named = ctl.first_named(
        (appmaster, model_dir),
        (group.appmaster, group.model_dir),
        ctl.named_in(os.environ, "appmaster"),
    )
    with ctl.errors_as_one_line(f"ctl app {context.info_name}"):
        if named is None and group.is_discovery_used:  # the default would be another job's
            raise InvalidSetting(
                "an AppMaster is in no discovery back end: name it with --appmaster or --model-dir"
            )
    address, directory = named or (None, ctl.DEFAULT_MODEL_DIR)
    with closing(AppMaster(address, directory, group.timeout_s)) as master:
        ctl.answer_with(
            f"ctl app {context.info_name}", as_json or group.as_json, lambda: ask(master), show
        )


def _show(shown: Application) -> None:
    console = Console()
    ended = (
        f", exit code {shown.exit_code}: {shown.reason}"
        if shown.final_status != "UNDEFINED"
        else ""
    )
    state = "RUNNING" if shown.final_status == "UNDEFINED" else shown.final_status
    console.print(f"[bold]{shown.app_id}[/bold] {state}{ended}", highlight=False, soft_wrap=True)
    where = f"controller {shown.controller or 'not found'}"
    console.print(
        f"{shown.phase}, step {shown.global_step}, {shown.progress:.0%} done, {where}",
        highlight=False,
    )
    supervisor = "" if shown.is_supervised else "; nobody supervises the processes"
    console.print(
        f"up to {shown.max_restarts} restarts of each process{supervisor}", highlight=False
    )
    if shown.processes:
        table = Table("process", "pid", "state", "restarts", box=SIMPLE, pad_edge=False)
        for process in shown.processes:
            table.add_row(process.name, str(process.pid), _state(process), str(process.starts - 1))
        console.print(table)
    for each in shown.savepoints:
        _show_savepoint(each)


def _state(process: SupervisedProcess) -> str:
    if process.is_running:
        return "[green]running[/green]"
    how = (
        f"signal {-process.exit_status}"
        if process.exit_status < 0
        else f"exit status {process.exit_status}"
    )
    return f"[red]{how}[/red]" if process.exit_status else f"ended, {how}"


def _show_savepoint(shown: Savepoint) -> None:
    print(f"savepoint {shown.id} {shown.state}", shown.path or shown.message, sep=" ")
