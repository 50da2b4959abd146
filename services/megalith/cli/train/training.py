"""Following a local cluster: progress while it trains, a summary at the end."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from megalith.cli.cluster.local import LocalCluster
from megalith.cli.cluster.local_process import ProcessFailed
from megalith.cli.cluster.supervision import Supervisor
from megalith.cli.runs.run_record import RunRecord
from megalith.cli.screen.output import print_line
from megalith.cli.screen.words import figure_text, held_by, hook_errors, left_out
from megalith.cli.train.news import News
from megalith.control import ClusterStatus, MemberStatus
from megalith.errors import MegalithError

_POLL_S = 0.2
MISSING = "missing values"  # of the training
_LINE_S = 5.0  # between lines of metrics.jsonl, and where there is no terminal to redraw


def follow(
    cluster: LocalCluster,
    supervisor: Supervisor,
    news: News,
    record: RunRecord,
    console: Console,
) -> ClusterStatus:
    """Show progress until the job has an outcome; raises ProcessFailed when it cannot get one."""
    progress = _BarBelow(
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )

    next_line = 0.0
    time_left = TimeLeft()
    with progress:
        bar = progress.add_task("starting", total=None)
        for status in statuses(cluster, supervisor):
            news.tell(status)
            done, total, text = summary_line(status)
            progress.update(bar, description=text, completed=done, total=total or None)

            is_line_due = status.outcome or time.monotonic() >= next_line
            if is_line_due:
                record.add(status)
                next_line = time.monotonic() + _LINE_S
                if not console.is_terminal:
                    left = "" if _is_ending(status) else time_left.text(done, total)
                    print_progress(status, console, left)

            if status.outcome:
                supervisor.raise_failure(status)
                return status

    raise ProcessFailed("the controller is gone")


class _BarBelow(Progress):
    """The figures, and below them the bar: a narrow terminal has no room for both in one line."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield Text(task.description, overflow="fold")
            yield self.make_tasks_table([task])


def _is_ending(status: ClusterStatus) -> bool:
    """Whether no batch is trained any more: what is left is to evaluate and to save."""
    workers = [member for member in status.members if member.role == "worker"]
    are_done = all(_has_trained_its_share(member) for member in workers)
    is_told_to = bool(status.outcome or status.ending)

    return is_told_to or are_done


def print_progress(status: ClusterStatus, console: Console, left: str = "") -> None:
    """One line, if there are workers: they make progress. `left` is the time they need."""
    if all(member.role != "worker" for member in status.members):
        return

    done, total, line = summary_line(status)
    if total:
        unit = "batches" if status.pieces is None else "pieces"
        line = f"{done}/{total} {unit}, {line}"

    print_line(console, line + left)


def print_summary(status: ClusterStatus, elapsed_s: float, console: Console) -> None:
    """The figures of a finished run."""
    has_succeeded = status.outcome == "succeeded"
    title = "training finished" if has_succeeded else "training failed"
    table = Table(title=title, show_header=False)

    for name, figure in result_rows(status.results):
        table.add_row(name, figure)

    examples = 0
    rows = 0
    missing = 0
    for member in status.members:
        examples += member.examples_before + member.examples
        rows += member.rows
        missing += member.missing_values

    rate = "-"
    if elapsed_s > 0:
        rate = f"{examples / elapsed_s:,.0f}"

    table.add_row("steps", f"{status.global_step:,}")
    table.add_row("examples", f"{examples:,}")
    table.add_row("examples/s", rate)
    table.add_row("rows", f"{rows:,}")
    if missing:
        table.add_row(MISSING, f"{missing:,}")

    for what, count in left_out(status).items():
        table.add_row(f"{what} left out", f"{count:,}")

    raised = hook_errors(status.members)
    if raised:
        table.add_row("errors of hooks", f"{raised:,}")

    console.print(table)

    is_stopped = any(member.stop_reason for member in status.members)
    is_left_out = any(member.skipped_batches for member in status.members)
    has_read = examples or is_left_out
    if has_succeeded and status.input and not has_read and not is_stopped:
        print_line(console, _NOTHING_LEFT, "yellow")

    print_line(console, f"checkpoint {status.last_checkpoint or 'none'}")
    print_line(console, status.reason, "" if has_succeeded else "red")


def result_rows(results: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """The figures of an evaluation by the names that people read, as text."""
    for name, value in sorted(results.items()):
        yield _shown(name), figure_text(name, value)

    if "auc" in results and "best_auc" in results:
        difference = results["best_auc"] - results["auc"]
        yield "difference", f"{difference:.5f}"


_NOTHING_LEFT = (
    "no batch was trained: the job had come to the end of its input, or to --max-steps, before. "
    "To train on: more --num-examples or --epochs. To read the input again: --input-cursors false"
)

_RESULT_NAMES = {
    "auc": "AUC",
    "best_auc": "best reachable AUC",
    "log_loss": "log-loss",
    "calibration": "predicted / actual",
    "missing_values": "missing values in the evaluation",
    "missing_per_example": "missing values per example",
}


def _shown(name: str) -> str:
    """The name of a figure as people read it; `auc gender=F` is the AUC of a group."""
    known, blank, rest = name.partition(" ")
    return _RESULT_NAMES.get(known, known) + blank + rest


class TimeLeft:
    """How long training will still take, by how long it has taken since it was first seen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def text(self, done: int, total: int) -> str:
        """For example "  1:05 left"; empty as long as nothing is known."""
        now = self._clock()
        if self._first is None or done < self._first[1]:
            self._first = (now, done)

        began_at, done_then = self._first
        is_known = done_then < done < total
        if not is_known:
            return ""

        took_s = now - began_at
        batch_s = took_s / (done - done_then)
        left_s = batch_s * (total - done)
        minutes, seconds = divmod(round(left_s), 60)
        return f"  {minutes}:{seconds:02} left"


def statuses(cluster: LocalCluster, supervisor: Supervisor) -> Iterator[ClusterStatus]:
    """What the controller says, over and over; a controller that is started again is waited for.

    So is one that runs and does not answer, as on a machine that is too busy: the model is in the
    memory of processes that would end with this one. ProcessFailed once it is gone for good.
    """
    while True:
        try:
            status = cluster.controller.status()
        except MegalithError as error:
            supervisor.look()
            is_gone = cluster.controller_status is not None
            if is_gone and not supervisor.is_controller_expected:
                raise ProcessFailed(f"the controller does not answer: {error}") from error

            supervisor.say_silent(error)
        else:
            supervisor.look(is_over=bool(status.outcome))
            supervisor.say_heard()
            yield status

        time.sleep(_POLL_S)


def summary_line(status: ClusterStatus) -> tuple[int, int, str]:
    """(batches done, batches in all or 0, one line); of an input that is handed out its pieces."""
    workers = [member for member in status.members if member.role == "worker"]
    done = sum(member.position for member in workers)
    total = 0
    if not any(_has_unknown_share(member) for member in workers):
        total = sum(member.total_batches for member in workers)

    pieces = status.pieces

    if pieces is not None and pieces.total and not pieces.is_followed:
        done = pieces.done
        total = pieces.total

    if status.phase in ("forming", "initializing"):
        return done, 0, f"{status.phase} the cluster"

    step = f"step {status.global_step:,}"
    if workers and all(_has_trained_its_share(member) for member in workers):
        return done, total, f"{step}  evaluating and saving"

    holds = held_by(status.barrier)
    if holds:
        held = ", ".join(holds)
        return done, total, f"{step}  {held}"

    rate = 0.0
    losses = []
    for member in workers:
        if member.standing == "alive":
            rate += member.examples_per_s
        if member.loss:
            losses.append(member.loss)

    loss = "-"
    if losses:
        mean = sum(losses) / len(losses)
        loss = f"{mean:.4f}"

    metrics = _metrics(workers)
    return done, total, f"{step}  {rate:,.0f} examples/s  loss {loss}{metrics}"


def _metrics(workers: Sequence[MemberStatus]) -> str:
    """What tasks say of their steps beside the loss, as means over the workers."""
    by_name: dict[str, list[float]] = {}
    for member in workers:
        for name, value in member.metrics.items():
            by_name.setdefault(name, []).append(value)

    shown = ""
    for name, values in sorted(by_name.items()):
        mean = sum(values) / len(values)
        shown += f"  {_shown(name)} {mean:.4f}"

    return shown


def _has_trained_its_share(worker: MemberStatus) -> bool:
    if worker.is_finished:
        return True
    return 0 < worker.total_batches == worker.position


def _has_unknown_share(worker: MemberStatus) -> bool:
    """Whether it has not said yet how much it trains, or never will: of an endless input."""
    is_there = worker.standing == "alive" and not worker.is_finished
    return is_there and not worker.total_batches
