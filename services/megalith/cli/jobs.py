"""`megalith up` and `megalith train`: a whole job on this machine, from its start to its end."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console

from megalith.cli import ctl, training
from megalith.cli.local import LocalCluster
from megalith.cli.output import print_status
from megalith.cli.supervision import Supervisor
from megalith.cli.waiting import WaitingLines
from megalith.runner.config import RunnerConfig
from megalith.wire.errors import InvalidSetting, MegalithError

_DEFAULT_EXAMPLES = 2_000_000
_POLL_S = 0.2


def up(context: typer.Context) -> None:
    config = RunnerConfig.from_command_line("up", context.args, os.environ, summary=context.command.help or "")
    console = Console()
    with _running(console, config, False) as (cluster, supervisor):
        print_status(cluster.controller.status(), console)
        where = f" --model-dir {config.model_dir}" if config.model_dir != ctl.DEFAULT_MODEL_DIR else ""
        console.print(f"logs in {cluster.model_dir}/logs; drive it with: megalith ctl{where} status", highlight=False)
        console.print("Ctrl-C stops everything")
        # A controller that exits by itself has ended the job; one that was killed is the supervisor's concern.
        while (status := cluster.controller_status) is None or status < 0:
            supervisor.look()
            time.sleep(_POLL_S)
    raise typer.Exit(status)


def train(context: typer.Context) -> None:
    config = RunnerConfig.from_command_line(
        "train",
        context.args,
        os.environ,
        summary=context.command.help or "",
        positional="task",
        model_dir=f"{ctl.DEFAULT_MODEL_DIR}/{time.strftime('%Y%m%d-%H%M%S')}",
        num_examples=_DEFAULT_EXAMPLES,
    )
    if not config.num_workers or not (config.num_examples or config.max_steps):
        _fail(
            InvalidSetting("train needs workers and an end: --num-workers, and --num-examples or --max-steps, above 0")
        )
    console = Console()
    with _running(console, config, True) as (cluster, supervisor):
        where = f"--model-dir {config.model_dir}"
        console.print(f"drive it with: megalith ctl {where} status", highlight=False, soft_wrap=True)
        started = time.monotonic()
        status = training.follow(cluster, supervisor, console)
        training.print_summary(status, time.monotonic() - started, console)
    raise typer.Exit(0 if status.outcome == "succeeded" else 1)


@contextmanager
def _running(console: Console, config: RunnerConfig, is_run_to_end: bool) -> Iterator[tuple[LocalCluster, Supervisor]]:
    """A cluster that is formed on the way in and gone on the way out. An error is one line and exit status 1."""
    # SIGINT too: a shell starts background jobs with it ignored, and Python then leaves it so.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        cluster = LocalCluster(config, stay_up=is_run_to_end)
    except MegalithError as error:
        _fail(error)
    supervisor = Supervisor(cluster, config.max_restarts, console)
    try:
        spare = config.num_extra_ps + config.num_redundant_ps
        more = f" and {spare} to choose from" if spare else ""
        shape = f"{config.num_ps} ps{more}, {config.num_workers} workers"
        console.print(f"starting controller, {shape} and appmaster in {config.model_dir}", highlight=False)
        lines = WaitingLines(console)
        cluster.start(lines)
        _wait_until_formed(cluster, supervisor, lines)
        yield cluster, supervisor
    except MegalithError as error:
        _fail(error)
    except KeyboardInterrupt:
        console.print("stopping")
        raise typer.Exit(130 if is_run_to_end else 0) from None
    finally:
        # From here on the end is near and bounded; another Ctrl-C must not leave processes behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        supervisor.close()
        cluster.stop()


def _wait_until_formed(cluster: LocalCluster, supervisor: Supervisor, lines: WaitingLines) -> None:
    for status in training.statuses(cluster, supervisor):
        if status.outcome or (status.phase != "forming" and all(member.address for member in status.members)):
            return
        lines.tell_of(status, cluster.processes)


def _fail(error: MegalithError) -> NoReturn:
    print(f"megalith: {error}", file=sys.stderr)
    raise typer.Exit(1) from None


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
