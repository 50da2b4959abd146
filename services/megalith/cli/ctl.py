"""`megalith ctl`: drive a running job."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from typer.models import OptionInfo

from megalith.cli.output import held_by, print_status
from megalith.cli.watching import watch
from megalith.client import Barrier, Controller
from megalith.runtime.discovery.settings import DiscoverySettings
from megalith.wire.errors import BarrierAlreadyPlaced, MegalithError
from megalith.wire.status import status_of

R = TypeVar("R")

app = typer.Typer(no_args_is_help=True, help="Drive a running job: status, stop, resume, save.")
DEFAULT_MODEL_DIR = "model"

# Round brackets: square ones are markup to rich, and vanish from the help.
_CONTROLLER_HELP = "host:port of the controller (environment: MEGALITH_CTL_CONTROLLER)."
_MODEL_DIR_HELP = f"Model directory of the job (default: {DEFAULT_MODEL_DIR}; environment: MEGALITH_CTL_MODEL_DIR)."
ControllerOption = Annotated[str, typer.Option("--controller", help=_CONTROLLER_HELP)]
ModelDirOption = Annotated[str, typer.Option("--model-dir", help=_MODEL_DIR_HELP)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout-s", help="Seconds to look for the controller.")
]


def _found_by(name: str) -> OptionInfo:
    """A setting of discovery as an option of `megalith ctl`, with the services' own words and default."""
    (field,) = [field for field in dataclasses.fields(DiscoverySettings) if field.name == name]
    flag = f"--{name.replace('_', '-')}"
    option: OptionInfo = typer.Option(
        flag, envvar=f"MEGALITH_CTL_{name.upper()}", help=field.metadata["help"]
    )
    return option


DiscoveryOption = Annotated[str, _found_by("discovery")]
DiscoveryDirOption = Annotated[str, _found_by("discovery_dir")]
ZkServersOption = Annotated[str, _found_by("zk_servers")]
ConsulOption = Annotated[str, _found_by("consul")]
JobOption = Annotated[
    str, typer.Option("--job", envvar="MEGALITH_CTL_JOB", help="Name of the job in the back end.")
]


class _Resumed(StrEnum):
    """Whose hold a person may end."""

    OPERATOR = "operator"
    PLATFORM = "platform"


@dataclasses.dataclass
class Target:
    """Options of `megalith ctl` itself; those of a sub-command win."""

    controller: str = ""
    model_dir: str = ""
    as_json: bool = False
    timeout_s: float = 5.0
    job: str = ""
    discovery: DiscoverySettings = dataclasses.field(default_factory=DiscoverySettings)


@app.callback()
def ctl(
    context: typer.Context,
    controller: ControllerOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
    timeout_s: TimeoutOption = 5.0,
    discovery: DiscoveryOption = "none",
    discovery_dir: DiscoveryDirOption = "",
    zk_servers: ZkServersOption = "127.0.0.1:2181",
    consul: ConsulOption = "",
    job: JobOption = "",
) -> None:
    """Drive a running job: status, stop, resume, save."""
    with errors_as_one_line("ctl"):
        found_by = DiscoverySettings(
            discovery=discovery, discovery_dir=discovery_dir, zk_servers=zk_servers, consul=consul
        )
    context.obj = Target(controller, model_dir, as_json, timeout_s, job, found_by)


@app.command()
def status(
    context: typer.Context,
    controller: ControllerOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
    is_watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until the job ends.")
    ] = False,
    every_s: Annotated[
        float, typer.Option("--every-s", min=0.1, help="Seconds between two looks of --watch.")
    ] = 1.0,
) -> None:
    """Show every process, the step, the barrier, the last save and the next one."""
    if is_watch:
        group: Target = context.obj
        with errors_as_one_line("ctl status"), _job(context, controller, model_dir) as job:
            watch(job.status, every_s, as_json or group.as_json)
        return
    _run(context, controller, model_dir, as_json, lambda job: job.status(), print_status)


@app.command()
def stop(
    context: typer.Context,
    action: Annotated[
        str, typer.Option(help="What workers do: Stop = end their shares when resumed.")
    ] = "",
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at the status.")] = "",
    controller: ControllerOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Hold training: every worker blocks at its next step boundary."""

    def ask(job: Controller) -> None:
        try:
            job.stop(action, reason)
        except BarrierAlreadyPlaced as error:
            hint = "An operator has stopped training; `megalith ctl resume` lets it go on."
            raise BarrierAlreadyPlaced(f"{error} {hint}") from None

    _run(context, controller, model_dir, as_json, ask, say("training is held"))


@app.command()
def resume(
    context: typer.Context,
    holder: Annotated[
        _Resumed, typer.Option(help="Whose hold to end. platform: of an AppMaster that is gone.")
    ] = (_Resumed.OPERATOR),
    controller: ControllerOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let training that an operator or a ps out of memory stopped go on."""

    def ask(job: Controller) -> dict[str, Any]:
        job.resume(holder.value)
        barrier = job.status().barrier
        return {"ok": True, "held_by": held_by(barrier), "way_out": _way_out(barrier)}

    def show(answer: dict[str, Any]) -> None:
        others = answer["held_by"]
        print(f"training is still {' and '.join(others)}" if others else "training goes on")
        if answer["way_out"]:
            print(answer["way_out"])

    _run(context, controller, model_dir, as_json, ask, show)


def _way_out(barrier: Barrier) -> str:
    """What ends the holds that are left, where it takes another command than this one; otherwise empty."""
    if any(holder.kind == "platform" for holder in barrier.holders):
        return (
            "`megalith ctl app resume` ends the platform's hold; if its AppMaster is gone, "
            "`megalith ctl resume --holder platform` does"
        )
    return ""


@app.command("block-status")
def block_status(
    context: typer.Context,
    controller: ControllerOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show which workers wait at the barrier."""

    def ask(job: Controller) -> dict[str, list[int]]:
        blocked, unblocked = job.block_status()
        return {"blocked_indices": blocked, "unblocked_indices": unblocked}

    def show(answer: dict[str, list[int]]) -> None:
        table = Table("worker", "blocked")
        for index in sorted(answer["blocked_indices"] + answer["unblocked_indices"]):
            table.add_row(str(index), "yes" if index in answer["blocked_indices"] else "no")
        Console().print(table)

    _run(context, controller, model_dir, as_json, ask, show)


@app.command()
def save(
    context: typer.Context,
    directory: Annotated[
        str, typer.Option(help="Where to save, not another job's; empty = its model directory.")
    ] = "",
    hold: Annotated[
        bool, typer.Option("--hold", help="Hold training meanwhile: one moment of all workers.")
    ] = False,
    controller: ControllerOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Save a checkpoint and wait until it is complete."""
    _run(
        context,
        controller,
        model_dir,
        as_json,
        lambda job: job.save(os.path.abspath(directory) if directory else "", hold=hold),
        lambda saved: print(f"saved {saved.path} (step {saved.step}, {saved.rows} rows)"),
    )


@app.command("training-status")
def training_status(
    context: typer.Context,
    controller: ControllerOption = "",
    model_dir: ModelDirOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the global step."""
    _run(
        context,
        controller,
        model_dir,
        as_json,
        lambda job: {"global_step": job.training_status()},
        lambda answer: print(f"global step {answer['global_step']}"),
    )


def _run(
    context: typer.Context,
    controller: str,
    model_dir: str,
    as_json: bool,
    ask: Callable[[Controller], Any],
    show: Callable[[Any], None],
) -> None:
    """One call to the controller; an error is one line and exit status 1."""
    group: Target = context.obj
    with _job(context, controller, model_dir) as job:
        answer_with(f"ctl {context.info_name}", as_json or group.as_json, lambda: ask(job), show)


@contextmanager
def _job(context: typer.Context, controller: str, model_dir: str) -> Iterator[Controller]:
    group: Target = context.obj
    with (
        which_job(context, controller, model_dir) as (address, directory),
        closing(Controller(address, directory, group.timeout_s)) as job,
    ):
        yield job


@contextmanager
def which_job(
    context: typer.Context, controller: str, model_dir: str
) -> Iterator[tuple[str | Callable[[], str] | None, str | None]]:
    """The controller's address or how to find it, or the model directory, the other one None; as it was told."""
    group: Target = context.obj
    command, whole = (controller, model_dir), (group.controller, group.model_dir)
    if not group.discovery.is_used or any((*command, *whole)):
        yield first_named(command, whole, named_in(os.environ, "controller")) or (
            None,
            DEFAULT_MODEL_DIR,
        )
        return
    from megalith.runtime.presence import (
        Presence,
    )  # a server's metrics come with it: only for those who look there

    with errors_as_one_line(f"ctl {context.info_name}"):
        found_by = Presence("ctl", 0, group.discovery.open(group.job, ""), "", "")
    try:
        yield found_by.find_controller, None
    finally:
        found_by.stop()


@contextmanager
def errors_as_one_line(command: str) -> Iterator[None]:
    """Inside, an error is one line on stderr and exit status 1."""
    try:
        yield
    except MegalithError as error:
        line = " ".join(str(error).split())
        print(f"megalith {command}: {line} [{status_of(type(error)).name}]", file=sys.stderr)
        raise typer.Exit(1) from None


def answer_with(
    command: str, as_json: bool, ask: Callable[[], R], show: Callable[[R], None]
) -> None:
    """Ask, then show or print the answer; an error is one line on stderr and exit status 1."""
    with errors_as_one_line(command):
        answer = ask()
    if as_json:
        print(json.dumps({"ok": True} if answer is None else answer, default=dataclasses.asdict))
    else:
        show(answer)


def first_named(*places: tuple[str, str]) -> tuple[str | None, str | None] | None:
    """(address, model directory), one of them None, from the first place that names either; None if none does."""
    for address, directory in places:
        if address or directory:
            return (address, None) if address else (None, directory)
    return None


def named_in(environ: Mapping[str, str], service: str) -> tuple[str, str]:
    """The address of that service and the model directory, as variables say them."""
    return environ.get(f"MEGALITH_CTL_{service.upper()}", ""), environ.get(
        "MEGALITH_CTL_MODEL_DIR", ""
    )


def say(text: str) -> Callable[[Any], None]:
    return lambda _answer: print(text)
