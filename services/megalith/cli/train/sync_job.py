"""`megalith train --sync full`: this process is one of the ranks that train together."""

import dataclasses
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from megalith.cli.runs.earlier_model import other_than
from megalith.cli.runs.run_record import RunRecord
from megalith.cli.screen.output import print_line
from megalith.cli.screen.words import files_word
from megalith.cli.tasks import refuse_unknown
from megalith.cli.train.training import MISSING, result_rows
from megalith.collective.choose import OFF as OFF
from megalith.collective.ranks import Ranks
from megalith.errors import MegalithError, RankFailed, RankSilent
from megalith.local import LocalRun
from megalith.runner.config import RunnerConfig
from megalith.runtime.config.commands import INTERRUPTED, fail
from megalith.runtime.config.settings import build, flag_of
from megalith.runtime.counting import counted
from megalith.runtime.monitoring.logs import configure_logging
from megalith.runtime.task_loading import load_task
from megalith.sync.training import open_ranks, sync_train
from megalith.wire.reports import HookErrors
from megalith.worker.config import HookSettings, SummarySettings, TaskSettings
from megalith.worker.hooks.chosen import hooks_of
from megalith.worker.session.progress import Progress
from megalith.worker.summaries import StepSummaries
from megalith.worker.task import Task

_LINE_S = 5.0  # between two lines about progress
_SILENT_S = 10.0  # before the first step, until it is said what it may wait for
_NO_STEP_YET = (
    "the first step is still to come: the first run on a machine compiles its kernels for half a "
    "minute, and a large checkpoint takes a while to read"
)

# What --sync full takes; all other settings are about servers and workers that it does not have.
_TAKEN = (
    "batch_size",
    "collective",
    "figures_every_s",
    "hooks",
    "input_name",  # which `train ctr` decides
    "log_level",
    "max_steps",
    "model_dir",
    "num_examples",
    "on_hook_error",
    "on_nan",
    "params_override",
    "prefetch_batches",
    "restore_ckpt",
    "save_every_s",
    "save_every_steps",
    "save_only_online",
    "seed",
    "set",
    "summary_every_steps",
    "sync",
    "sync_timeout_s",
    "task",
    "task_options",
    "tensorboard",
    "train_window",
)

_NOTHING_LEFT = (
    "no batch was trained: the input was at its end, or the job at --max-steps, before. To train "
    "on: more --num-examples, or --epochs of ctr"
)

Prepare = Callable[[RunnerConfig, Console], RunnerConfig]


def train_together(config: RunnerConfig, prepare: Prepare = lambda job, _: job) -> int:
    """Be one rank of the training that the settings say; the exit status.

    `prepare` completes the settings on rank 0, for all ranks.
    """
    _refuse_useless(config)
    refuse_unknown(config.task)

    try:
        ranks = open_ranks(config.collective, config.sync_timeout_s)
    except MegalithError as error:
        print(f"megalith: {error}", file=sys.stderr)
        return 1

    configure_logging(f"rank-{ranks.index}", config.log_level if ranks.is_first else "warning")
    try:
        return _train(config, prepare, ranks)
    except MegalithError as error:
        # Of an error that all ranks know of, the rank that had it and rank 0 speak.
        is_of_another = isinstance(error, RankFailed) and not isinstance(error, RankSilent)
        if ranks.is_first or not is_of_another:
            notes = getattr(error, "__notes__", ())
            said = "; ".join([str(error), *notes])
            print(f"megalith: rank {ranks.index}: {said}", file=sys.stderr, flush=True)

        return 1
    finally:
        ranks.close()


def _refuse_useless(config: RunnerConfig) -> None:
    """A usage error for a setting of a cluster."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in _TAKEN and value != field.default:
            fail(
                f"{flag_of(field.name)}={value}: makes no sense with --sync {config.sync}, which "
                "has neither servers nor workers of its own"
            )

    for text in config.set.split():
        unquoted = text.lstrip("'\"")
        if not unquoted.startswith("task."):
            fail(f"--set {text}: with --sync {config.sync} there is only task.NAME=VALUE")


def _train(config: RunnerConfig, prepare: Prepare, ranks: Ranks) -> int:
    # mpirun gives a rank a terminal of its own, also if what it prints goes to a file
    is_terminal = None if ranks.count == 1 else False
    console = Console(quiet=not ranks.is_first, force_terminal=is_terminal)
    with ranks.ending_together():
        job = _as_on_first_rank(config, prepare, ranks, console)
        if ranks.is_first:
            warning = other_than(job)
            if warning:
                print_line(console, warning, "yellow")

        task = _loaded(job)
        told = job.settings_of("worker")
        names = [field.name for field in dataclasses.fields(HookSettings)]
        hook_settings = HookSettings(**{name: told[name] for name in names})
        # Rank 0 alone would count its own rows; `RankOperator` has those of all.
        hooks = hooks_of(task, hook_settings, ranks.index, counts_tables=False)
        pace = Progress()
        summaries = _summaries(job, pace) if ranks.is_first else None

    print_line(
        console,
        f"training on {counted(ranks.count, 'rank')} ({ranks.engine_name}) in {job.model_dir}",
    )
    stop = _Stop.on_signals()
    examples_a_step = ranks.count * job.batch_size
    lines = _StepLines(console, examples_a_step)

    def on_step(step: int, loss: float) -> None:
        lines.step(step, loss)
        pace.step_done(step, examples_a_step, loss)

    with ranks.ending_together(), ExitStack() as closes:
        closes.callback(lines.close)
        if summaries is not None:
            closes.callback(summaries.close)

        run = sync_train(
            task,
            ranks=ranks,
            model_dir=job.model_dir,
            start_from=job.restore_ckpt or None,
            max_steps=job.max_steps,
            save_every_steps=job.save_every_steps,
            save_every_s=job.save_every_s,
            save_only_online=job.save_only_online,
            figures_every_s=job.figures_every_s,
            on_nan=job.on_nan,
            prefetch_batches=job.prefetch_batches,
            batch_size=job.batch_size,
            input_name=job.input_name,
            hooks=hooks,
            is_stopped=lambda: stop.is_asked,
            on_step=on_step,
            on_begun=lambda: _write_settings(job, console),
            summaries=summaries,
        )

    asked = np.array([stop.is_asked], np.int64)
    was_stopped = bool(ranks.gather(asked).any())
    _print_summary(console, ranks, run, hooks.errors, was_stopped)

    if was_stopped:
        print_line(console, "stopped by a signal; all that was trained is saved", "yellow")
        return INTERRUPTED

    return 0


def _as_on_first_rank(
    config: RunnerConfig, prepare: Prepare, ranks: Ranks, console: Console
) -> RunnerConfig:
    """Rank 0 decides: a default may have the time in it, and data is looked at once."""
    told = {}
    if ranks.is_first:
        # As many workers as there are ranks, for what is divided among them
        as_workers = dataclasses.replace(config, num_workers=ranks.count)
        prepared = prepare(as_workers, console)

        job = dataclasses.replace(prepared, num_workers=config.num_workers)
        told = dataclasses.asdict(job)

    text = ranks.told(json.dumps(told))
    return RunnerConfig(**json.loads(text))


def _write_settings(job: RunnerConfig, console: Console) -> None:
    """Once the directory is this job's, and its model goes with the task."""
    folder = Path(job.model_dir).absolute()
    record = RunRecord(folder, lambda line: print_line(console, line, "yellow"))
    record.write_settings(job)


def _loaded(job: RunnerConfig) -> Task[object]:
    settings = build(TaskSettings, job.settings_of("worker"))
    task: Task[object] = load_task(settings.task, settings.keywords())
    return task


def _summaries(job: RunnerConfig, pace: Progress) -> StepSummaries | None:
    """What rank 0 writes for TensorBoard; None if it is to write nothing."""
    settings = SummarySettings(
        tensorboard=job.tensorboard, summary_every_steps=job.summary_every_steps
    )
    return StepSummaries(settings, 0, pace) if settings.tensorboard else None


@dataclass(slots=True)
class _Stop:
    """Whether a signal has told this rank to stop: all ranks then save and end."""

    is_asked: bool = False

    @classmethod
    def on_signals(cls) -> "_Stop":
        stop = cls()

        def ask(_number: int, _frame: object) -> None:
            stop.is_asked = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, ask)

        return stop


class _StepLines:
    """A line about the steps of all ranks every few seconds, and one if the first takes long."""

    def __init__(self, console: Console, examples_a_step: int) -> None:
        self._console = console
        self._silence = threading.Timer(_SILENT_S, print_line, (console, _NO_STEP_YET))
        self._silence.name = "first-step"
        self._silence.daemon = True
        self._silence.start()

        self._examples_a_step = examples_a_step
        self._since = time.monotonic()
        self._steps = 0

    def close(self) -> None:
        self._silence.cancel()

    def step(self, step: int, loss: float) -> None:
        self._silence.cancel()
        self._steps += 1
        passed_s = time.monotonic() - self._since
        if passed_s < _LINE_S:
            return

        examples_per_s = self._steps * self._examples_a_step / passed_s
        print_line(
            self._console, f"step {step:,}  {examples_per_s:,.0f} examples/s  loss {loss:.4f}"
        )
        self._since += passed_s
        self._steps = 0


def _print_summary(
    console: Console, ranks: Ranks, run: LocalRun, errors: HookErrors, was_stopped: bool
) -> None:
    """The figures of a finished run, of all ranks together."""
    mine = run.left_out
    left_out = [run.skipped_batches, mine.skipped_messages, mine.late_files]
    counts = [run.examples, run.model.num_rows, errors.hook_errors, run.missing_values, *left_out]
    gathered = ranks.gather(np.array(counts, np.int64))
    examples, rows, raised, missing, *left_out_in_all = gathered.sum(0).tolist()

    num_counting_files = int(np.count_nonzero(gathered[:, -1]))
    files = files_word(num_counting_files, is_handed_out=False)
    stop_reasons = ranks.gather_texts(run.stop_reason)
    failures_by_rank = [text.splitlines() for text in ranks.gather_texts(_lines(errors))]
    title = "training stopped" if was_stopped else "training finished"
    table = Table(title=title, show_header=False)

    for name, figure in result_rows(run.figures):
        table.add_row(name, figure)

    rate = examples / run.seconds if run.seconds else 0.0
    table.add_row("steps", f"{run.step:,}")
    table.add_row("examples", f"{examples:,}")
    table.add_row("examples/s", f"{rate:,.0f}")
    table.add_row("rows", f"{rows:,}")
    if missing:
        table.add_row(MISSING, f"{missing:,}")

    for what, count in zip(("batches", "messages", files), left_out_in_all, strict=True):
        if count:
            table.add_row(f"{what} left out", f"{count:,}")

    if run.untrained_batches != 0:
        count = "some" if run.untrained_batches is None else f"{run.untrained_batches:,}"
        table.add_row("batches left on other ranks", count)
    if raised:
        table.add_row("errors of hooks", f"{raised:,}")

    console.print(table)
    for rank, failures in enumerate(failures_by_rank):
        for failure in failures:
            print_line(console, f"rank {rank}: the hook {failure}", "yellow")

    for reason in dict.fromkeys(filter(None, stop_reasons)):
        print_line(console, f"training ended early: {reason}", "yellow")

    was_stopped = was_stopped or any(stop_reasons)
    if not (examples or any(left_out_in_all) or was_stopped):
        print_line(console, _NOTHING_LEFT, "yellow")

    print_line(console, f"checkpoint {run.checkpoint or 'none'}")
    if run.has_nothing_new:
        print_line(console, f"nothing new since {run.checkpoint}")


def _lines(errors: HookErrors) -> str:
    return "\n".join(errors.hook_failures)
