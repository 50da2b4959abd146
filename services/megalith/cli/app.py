"""`megalith`: the whole product from one command."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from megalith.cli import ctl, training
from megalith.cli.local import LocalCluster
from megalith.cli.output import print_status
from megalith.runtime import settings
from megalith.wire.errors import MegalithError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(ctl.app, name="ctl")

_DEFAULT_EXAMPLES = 2_000_000
_POLL_S = 0.2

PsOption = Annotated[int, typer.Option("--ps", min=1, max=1024, help="Parameter servers.")]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Examples per step.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Decides the generated data and the initial values.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"megalith {installed_version('megalith')}")
        raise typer.Exit


VersionOption = Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")]


@app.callback()
def megalith(version: VersionOption = False) -> None:
    """A training cluster for recommendation models."""


@app.command()
def up(
    ps: PsOption = 2,
    workers: Annotated[int, typer.Option(min=0, help="Workers; 0 = only SDK clients train.")] = 2,
    model_dir: Annotated[Path, typer.Option(help="Directory of the job.")] = Path(ctl.DEFAULT_MODEL_DIR),
    task: Annotated[str, typer.Option(help="What the workers train.")] = "clicks",
    batch_size: BatchSizeOption = 2048,
    num_examples: Annotated[int, typer.Option(min=0, help="Examples in all; 0 = until stopped.")] = 0,
    seed: SeedOption = 1,
) -> None:
    """Start a cluster on this machine and keep it up until Ctrl-C or the end of the job."""
    console = Console()
    with _running(console, model_dir, ps, workers, _task(task, batch_size, num_examples, seed), False) as cluster:
        print_status(cluster.controller.status(), console)
        where = f" --model-dir {model_dir}" if str(model_dir) != ctl.DEFAULT_MODEL_DIR else ""
        console.print(f"logs in {cluster.model_dir}/logs; drive it with: megalith ctl{where} status", highlight=False)
        console.print("Ctrl-C stops everything")
        known: set[str] = set()
        while cluster.processes[0].poll() is None:
            training.report_ended(cluster, known, console, is_over=False)
            time.sleep(_POLL_S)
    raise typer.Exit(cluster.processes[0].poll() or 0)


@app.command()
def train(
    task: Annotated[str, typer.Argument(help="clicks, or package.module:factory of your own.")] = "clicks",
    ps: PsOption = 2,
    workers: Annotated[int, typer.Option(min=1, help="Workers.")] = 2,
    model_dir: Annotated[Path | None, typer.Option(help="Directory of the job.  [default: a new one]")] = None,
    batch_size: BatchSizeOption = 2048,
    num_examples: Annotated[int, typer.Option(min=1, help="Examples in all.")] = _DEFAULT_EXAMPLES,
    seed: SeedOption = 1,
) -> None:
    """Train a task on a cluster of this machine: start it, show progress and a summary, stop it."""
    console = Console()
    directory = model_dir or Path(ctl.DEFAULT_MODEL_DIR) / time.strftime("%Y%m%d-%H%M%S")
    with _running(console, directory, ps, workers, _task(task, batch_size, num_examples, seed), True) as cluster:
        console.print(f"drive it with: megalith ctl --model-dir {directory} status", highlight=False, soft_wrap=True)
        started = time.monotonic()
        status = training.follow(cluster, console)
        training.print_summary(status, time.monotonic() - started, console)
    raise typer.Exit(0 if status.outcome == "succeeded" else 1)


def _task(task: str, batch_size: int, num_examples: int, seed: int) -> dict[str, Any]:
    return {"task": task, "batch_size": batch_size, "num_examples": num_examples, "seed": seed}


@contextmanager
def _running(
    console: Console, model_dir: Path, ps: int, workers: int, task: dict[str, Any], is_run_to_end: bool
) -> Iterator[LocalCluster]:
    """A cluster that is formed on the way in and gone on the way out. An error is one line and exit status 1."""
    # SIGINT too: a shell starts background jobs with it ignored, and Python then leaves it so.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        cluster = LocalCluster(model_dir, ps, workers, task, stay_up=is_run_to_end)
    except MegalithError as error:
        _fail(error)
    try:
        console.print(f"starting controller, {ps} ps, {workers} workers and appmaster in {model_dir}", highlight=False)
        cluster.start()
        _wait_until_formed(cluster, console)
        yield cluster
    except MegalithError as error:
        _fail(error)
    except KeyboardInterrupt:
        console.print("stopping")
        raise typer.Exit(130 if is_run_to_end else 0) from None
    finally:
        # From here on the end is near and bounded; another Ctrl-C must not leave processes behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        cluster.stop()


def _wait_until_formed(cluster: LocalCluster, console: Console) -> None:
    known: set[str] = set()
    while (status := cluster.controller.status()).phase == "forming" or not all(m.address for m in status.members):
        training.report_ended(cluster, known, console, is_over=False)
        time.sleep(_POLL_S)


def _fail(error: MegalithError) -> NoReturn:
    print(f"megalith: {error}", file=sys.stderr)
    raise typer.Exit(1) from None


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _add_service(name: str, config_class: str, help: str) -> None:
    """`megalith <service>`: the same flags and environment as `python -m megalith.<service>`."""

    def run(context: typer.Context) -> None:
        # Imported here: `megalith ctl` must not wait for the kernels' compiler.
        config = getattr(import_module(f"megalith.{name}.config"), config_class)
        serve = import_module(f"megalith.{name}.server").run
        raise typer.Exit(settings.main(name, config, serve, context.args, os.environ))

    pass_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=help, context_settings=pass_on, add_help_option=False)(run)


_add_service("controller", "ControllerConfig", "Run the controller: membership, routing, barrier, checkpoints.")
_add_service("ps", "PsConfig", "Run a parameter server.")
_add_service("worker", "WorkerConfig", "Run a worker.")
_add_service("appmaster", "AppMasterConfig", "Run the AppMaster mock.")


def main() -> None:
    """Entry point of the `megalith` command."""
    app()
