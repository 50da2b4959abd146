"""`megalith up` and `megalith train`: a whole job on this machine, from its start to its end."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from click.exceptions import Exit
from rich.console import Console

from megalith.cli.cluster import suggested
from megalith.cli.cluster.local import LocalCluster
from megalith.cli.cluster.supervision import Supervisor
from megalith.cli.cluster.waiting import WaitingLines
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR
from megalith.cli.runs.earlier_model import other_than
from megalith.cli.runs.job_file import arguments_of
from megalith.cli.runs.run_record import RunRecord
from megalith.cli.screen.output import print_line
from megalith.cli.tasks import refuse_unknown
from megalith.cli.train import training
from megalith.cli.train.leaving import leave
from megalith.cli.train.news import News
from megalith.cli.train.stop_signals import StopSignals
from megalith.cli.train.sync_job import OFF, train_together
from megalith.cli.train.tried_task import refuse_unusable
from megalith.control import ClusterStatus, Controller
from megalith.errors import MegalithError
from megalith.runner.config import PREFIX, RunnerConfig
from megalith.runtime.config.command_line import SettingsCommand
from megalith.runtime.config.commands import LazyCommand, fail
from megalith.runtime.counting import counted

_DEFAULT_EXAMPLES = 2_000_000
SHOWN_MODEL_DIR = f"default: {DEFAULT_MODEL_DIR}/<date>-<time>"
_POLL_S = 0.2
_ASK_S = 1.0
_LINE_S = 60.0  # between two lines about progress
_LEAVE_S = 30.0  # for the controller to exit after the end of the job
_NO_SAVES = (
    "no saves are planned: a ps that dies is started again, but what it learned since the last "
    "checkpoint is lost; plan them with --save-every-s or --save-every-steps"
)
_NO_END = (
    "train needs workers and an end: --num-workers, and --num-examples or --max-steps, above 0"
)


def _up(config: RunnerConfig) -> int:
    if config.sync != OFF:
        fail(f"--sync={config.sync}: there is no cluster to keep up; use megalith train")

    console = Console()
    record = _record(config, console)
    with _running(console, config, False, record) as (cluster, supervisor, news):
        _say_that_it_is_up(console, config, cluster.controller.status())

        if config.max_restarts and not (config.save_every_s or config.save_every_steps):
            print_line(console, _NO_SAVES, "yellow")

        console.print("Ctrl-C stops everything")

        outcome = _follow_up(cluster, supervisor, news, console)
        if outcome is not None:
            print_line(console, f"the job {outcome.outcome}: {outcome.reason}")
            supervisor.raise_failure(outcome)
        else:
            controller = cluster.processes[0]
            last_lines = controller.last_lines()
            print_line(console, f"the job succeeded; {controller.log} ends with\n{last_lines}")

        _wait_for_controller(cluster)

    has_failed = outcome is not None and outcome.outcome != "succeeded"
    return 1 if has_failed else 0


def _say_that_it_is_up(console: Console, config: RunnerConfig, status: ClusterStatus) -> None:
    watch = suggested.ctl(config.model_dir, "status", "--watch")
    drive = suggested.ctl(config.model_dir, "--help")

    print_line(console, f"the cluster is up: controller {status.address}")
    print_line(console, f"watch it    {watch}")
    print_line(console, f"drive it    {drive}")
    print_line(console, f"logs        {status.model_dir}/logs")


def _follow_up(
    cluster: LocalCluster, supervisor: Supervisor, news: News, console: Console
) -> ClusterStatus | None:
    """Say what happens until the job has an outcome.

    None when it has succeeded, but nobody was asked in time. ProcessFailed when the controller ends
    in any other way: what was not saved is gone with its processes.

    A controller that hangs is asked in vain for a second at a time: its processes are supervised
    meanwhile, so that an operator can end the job.
    """
    next_line = time.monotonic() + _LINE_S
    with closing(Controller(None, str(cluster.model_dir), _ASK_S)) as job:
        # A controller that exits has ended the job; one that was killed is the supervisor's
        # concern.
        while (exit_status := cluster.controller_status) is None or exit_status < 0:
            supervisor.look()
            try:
                status = job.status()
            except MegalithError:
                status = None

            if status is not None:
                news.tell(status)
                if status.outcome:
                    return status

                if time.monotonic() > next_line:
                    next_line = time.monotonic() + _LINE_S
                    training.print_progress(status, console)

            time.sleep(_POLL_S)

    if exit_status != 0:
        raise cluster.processes[0].failure()

    return None


def _wait_for_controller(cluster: LocalCluster) -> None:
    """It has the processes leave, and tells the platform, before it exits."""
    deadline = time.monotonic() + _LEAVE_S
    while cluster.controller_status is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _record(config: RunnerConfig, console: Console) -> RunRecord:
    model_dir = Path(config.model_dir).absolute()
    return RunRecord(model_dir, lambda line: print_line(console, line, "yellow"))


def _train(config: RunnerConfig) -> int:
    has_end = config.num_examples or config.max_steps
    if not config.num_workers or not has_end:
        fail(_NO_END)
    if config.sync != OFF:
        return train_together(config)

    return train_to_the_end(config, Console())


def train_to_the_end(config: RunnerConfig, console: Console) -> int:
    """Start a cluster, follow its job until it has an outcome, print the summary, stop it."""
    drive = suggested.ctl(config.model_dir, "status")
    record = _record(config, console)
    with _running(console, config, True, record) as (cluster, supervisor, news):
        print_line(console, f"drive it with: {drive}")

        started = time.monotonic()
        status = training.follow(cluster, supervisor, news, record, console)
        took_s = time.monotonic() - started
        training.print_summary(status, took_s, console)

    return 0 if status.outcome == "succeeded" else 1


@contextmanager
def _running(
    console: Console, config: RunnerConfig, is_run_to_end: bool, record: RunRecord
) -> Iterator[tuple[LocalCluster, Supervisor, News]]:
    """A cluster that is formed on the way in and gone on the way out.

    An error is one line and exit status 1.
    """
    refuse_unknown(config.task)
    refuse_unusable(config)

    signals = StopSignals()
    signals.install()

    try:
        cluster = LocalCluster(config, stay_up=is_run_to_end)
    except MegalithError as error:
        fail_job(error)

    supervisor = Supervisor(cluster, config.model_dir, config.max_restarts, console)

    def on_status(status: ClusterStatus) -> None:
        if config.num_workers:
            record.take(status, config)

    news = News(console, config.model_dir, config.restore_ckpt, config.checkpoint_dir, on_status)
    warning = ""
    try:
        lines = WaitingLines(console)
        try:
            cluster.take()  # nothing is said of a directory that is refused
            console.print(_starting(config), highlight=False)
            warning = other_than(config) if config.num_workers else ""
            if warning:
                print_line(console, warning, "yellow")

            cluster.start(lines)
        except KeyboardInterrupt:  # no process is left, and none has trained
            print_line(console, "stopping; nothing was trained")
            raise Exit(130 if is_run_to_end else 0) from None

        _wait_until_formed(cluster, supervisor, news, lines)
        yield cluster, supervisor, news
        if warning and not record.has_settings:  # it was refused, and this may be why
            print_line(console, warning, "yellow")
    except MegalithError as error:
        refused = "" if record.has_settings else warning
        fail_job(error, news.farewell(), refused)
    except KeyboardInterrupt:
        is_saved = leave(
            cluster.controller,
            news,
            console,
            signals,
            saves=config.save_on_exit,
            timeout_s=config.final_save_timeout_s,
            heartbeat_s=config.heartbeat_s,
        )
        raise Exit(130 if is_run_to_end else int(not is_saved)) from None
    finally:
        # From here on the end is near and bounded; another Ctrl-C must not leave processes behind.
        signals.ignore()
        supervisor.close()
        cluster.stop()


def _starting(config: RunnerConfig) -> str:
    """What is started, for the first line."""
    servers = f"{config.num_ps} ps"
    spare = config.num_extra_ps + config.num_redundant_ps
    if spare:
        servers += f" and {spare} to choose from"

    parts = ["controller", servers, counted(config.num_workers, "worker")]
    if config.num_replicas:
        parts.append(counted(config.num_replicas, "replica"))

    return f"starting {', '.join(parts)} and appmaster in {config.model_dir}"


def _wait_until_formed(
    cluster: LocalCluster, supervisor: Supervisor, news: News, lines: WaitingLines
) -> None:
    for status in training.statuses(cluster, supervisor):
        news.tell(status)
        if status.outcome:
            supervisor.raise_failure(status)
            return

        is_everybody_in = all(member.address for member in status.members)
        if is_everybody_in and status.phase != "forming":
            return

        lines.tell_of(status, cluster.processes)


def fail_job(error: MegalithError, farewell: str = "", refused: str = "") -> NoReturn:
    """One line, and exit status 1. More lines say why it was `refused`, and what is not saved."""
    print(f"megalith: {error}", file=sys.stderr)
    for line in (refused, farewell):
        if line:
            print(f"megalith: {line}", file=sys.stderr)

    raise Exit(1) from None


def train_defaults() -> dict[str, Any]:
    now = time.strftime("%Y%m%d-%H%M%S")
    return {"model_dir": f"{DEFAULT_MODEL_DIR}/{now}", "num_examples": _DEFAULT_EXAMPLES}


class TrainCommand(SettingsCommand[RunnerConfig]):
    """`megalith train TASK`. A task with options of its own has a command of its own."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args and args[0].endswith(".toml"):
            args = [*arguments_of(args[0]), *args[1:]]

        task = args[0] if args else ""
        own = _TASK_COMMANDS.get(task)
        if own is None:
            return super().make_context(info_name, args, parent, **extra)

        command = own.load()
        path = f"{info_name} {own.name}"
        return command.make_context(path, args[1:], parent, **extra)


_TASK_COMMANDS = {
    "ctr": LazyCommand(
        "ctr",
        "megalith.cli.train.ctr:train_ctr",
        "A click model on your own columns, without code.",
    )
}

up = SettingsCommand(
    "up",
    RunnerConfig,
    _up,
    prefix=PREFIX,
    help="Start a cluster and keep it up until Ctrl-C or the end of the job.",
    first=("model_dir", "num_ps", "num_workers", "task", "save_every_s"),
    examples=("megalith up", "megalith up --workers 0 --save-every-s 600 --restart 3"),
)
train = TrainCommand(
    "train",
    RunnerConfig,
    _train,
    prefix=PREFIX,
    help="Train a task: start a cluster, show progress, save, stop it.",
    first=("num_examples", "batch_size", "num_ps", "num_workers", "model_dir"),
    examples=(
        "megalith train clicks",
        "megalith train ctr --help       a click model on your own columns, without code",
        "megalith train my_task.py:MyTask --set task.days=7 --workers 4",
        "megalith train job.toml         what the file says",
        "mpirun -n 4 megalith train my_task.py:MyTask --sync full",
    ),
    positional="task",
    defaults=train_defaults,
    shown={"model_dir": SHOWN_MODEL_DIR},
)
