"""Following a local cluster: progress while it trains, a summary at the end."""

import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from megalith.cli.local import LocalCluster, ProcessFailed
from megalith.cli.news import News
from megalith.cli.supervision import Supervisor
from megalith.client import ClusterStatus
from megalith.wire.errors import MegalithError

_POLL_S = 0.2
_LINE_S = 5.0  # between progress lines where there is no terminal to redraw


def follow(
    cluster: LocalCluster, supervisor: Supervisor, news: News, console: Console
) -> ClusterStatus:
    """Show progress until the job has an outcome; raises ProcessFailed when it cannot get one."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    next_line = 0.0
    with progress:
        bar = progress.add_task("starting", total=None)
        for status in statuses(cluster, supervisor):
            news.tell(status)
            done, total, text = summary_line(status)
            progress.update(bar, description=text, completed=done, total=total or None)
            if not console.is_terminal and (status.outcome or time.monotonic() >= next_line):
                console.print(
                    f"{done}/{total or '?'} batches, {text}" if total else text, highlight=False
                )
                next_line = time.monotonic() + _LINE_S
            if status.outcome:
                supervisor.raise_failure(status)
                return status
    raise ProcessFailed("the controller is gone")


def print_summary(status: ClusterStatus, elapsed_s: float, console: Console) -> None:
    """The figures of a finished run."""
    workers = [member for member in status.members if member.role == "worker"]
    examples = sum(member.examples for member in workers)
    table = Table(
        title="training finished" if status.outcome == "succeeded" else "training failed",
        show_header=False,
    )
    for name, value in sorted(status.results.items()):
        table.add_row(_RESULT_NAMES.get(name, name), f"{value:.5f}")
    if {"auc", "best_auc"} <= status.results.keys():
        table.add_row("difference", f"{status.results['best_auc'] - status.results['auc']:.5f}")
    table.add_row("steps", f"{status.global_step:,}")
    table.add_row("examples", f"{examples:,}")
    table.add_row("examples/s", f"{examples / elapsed_s:,.0f}" if elapsed_s > 0 else "-")
    table.add_row("rows", f"{sum(member.rows for member in status.members):,}")
    console.print(table)
    console.print(
        f"checkpoint {status.last_checkpoint or 'none'}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    style = None if status.outcome == "succeeded" else "red"
    console.print(status.reason, style=style, highlight=False, soft_wrap=True, markup=False)


_RESULT_NAMES = {"auc": "AUC", "best_auc": "best reachable AUC"}


def statuses(cluster: LocalCluster, supervisor: Supervisor) -> Iterator[ClusterStatus]:
    """What the controller says, over and over; a controller that is started again is waited for."""
    while True:
        try:
            status = cluster.controller.status()
        except MegalithError as error:
            supervisor.look()
            if not supervisor.is_controller_expected:
                raise ProcessFailed(f"the controller does not answer: {error}") from error
        else:
            supervisor.look(is_over=bool(status.outcome))
            yield status
        time.sleep(_POLL_S)


def summary_line(status: ClusterStatus) -> tuple[int, int, str]:
    """(batches done, batches in all or 0, one line)."""
    workers = [member for member in status.members if member.role == "worker"]
    done, total = (
        sum(member.position for member in workers),
        sum(member.total_batches for member in workers),
    )
    rate = sum(member.examples_per_s for member in workers)
    losses = [member.loss for member in workers if member.loss]
    loss = f"{sum(losses) / len(losses):.4f}" if losses else "-"
    if status.phase in ("forming", "initializing"):
        return done, 0, f"{status.phase} the cluster"
    if workers and all(
        member.is_finished or 0 < member.total_batches == member.position for member in workers
    ):
        return done, total, f"step {status.global_step:,}  evaluating and saving"
    return done, total, f"step {status.global_step:,}  {rate:,.0f} examples/s  loss {loss}"
