"""`megalith eval`: the checkpoints of a model directory on held-out data, without a cluster."""

import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from megalith.cli.ctl.answers import errors_as_one_line
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR
from megalith.cli.runs.recorded_task import recorded_task
from megalith.cli.runs.run_record import SETTINGS
from megalith.cli.runs.trained_task import TrainedTask
from megalith.cli.screen.words import duration, figure_text
from megalith.errors import CheckpointDamaged, CheckpointNotFound, InvalidSetting
from megalith.runtime.config.commands import Command, Option, fail
from megalith.tasks.checkpoint_scores import SCORES, Score, ScoreFile, follow, score

_TIMEOUT_S = 18_000.0  # 5 h
_POLL_S = 0.5
_NAME = "megalith eval"
_LINE = "{:<22}{:>12}{:>14}{}"  # checkpoint, step, rows, and the cells of the figures


def _eval(
    model_dir: Path,
    checkpoints: tuple[str, ...],
    eval_data: str,
    group_by: str,
    max_steps: int,
    timeout_s: float,
    out: Path | None,
    again: bool,
) -> int:
    with errors_as_one_line(_NAME):
        if not model_dir.is_dir():
            raise InvalidSetting(f"{model_dir} is no directory: where was the model trained?")

        if not checkpoints:
            _wait_for_settings(model_dir, timeout_s)

        recorded = recorded_task(model_dir, _changes(eval_data, group_by))
        file = ScoreFile(out or model_dir / SCORES)
        if checkpoints:
            directories: Iterable[Path] = _named(model_dir, checkpoints)
        else:
            done = set() if again else file.names(recorded.score_digest, recorded.digest)
            _say_done(done, file)
            directories = follow(model_dir, done, timeout_s, lambda: _say_waiting(timeout_s))

        last = max_steps or recorded.max_steps
        num_failed = _score_all(recorded, directories, file, last)

    return 1 if num_failed else 0


def _wait_for_settings(model_dir: Path, timeout_s: float) -> None:
    """A job that has just been started writes its settings when its processes are there."""
    deadline = time.monotonic() + timeout_s
    while not (model_dir / SETTINGS).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _changes(eval_data: str, group_by: str) -> dict[str, Any]:
    given = {"eval_data": eval_data, "group_by": group_by}
    return {name: value for name, value in given.items() if value}


def _named(model_dir: Path, names: Iterable[str]) -> Iterator[Path]:
    """Each checkpoint once, in the order given; a path, or the name of a folder of the model's."""
    for name in dict.fromkeys(names):
        inside = model_dir / name
        path = Path(name)
        if not inside.exists() and not path.exists():
            raise CheckpointNotFound(f"there is no checkpoint {inside}; megalith ckpt ls lists all")

        yield inside if inside.exists() else path


def _score_all(
    recorded: TrainedTask, directories: Iterable[Path], file: ScoreFile, max_steps: int
) -> int:
    """Score and print one after the other; how many were damaged."""
    task = recorded.load_to_score()
    table = _ScoreTable()
    num_damaged = 0
    for directory in directories:
        try:
            found = score(task, directory, recorded.score_digest)
        except CheckpointNotFound:
            _say(f"Checkpoint {directory} no longer exists, skipping checkpoint")
            continue
        except CheckpointDamaged as error:
            _say(f"{directory} is damaged and left out: {error}")
            num_damaged += 1
            continue

        file.add(found)
        table.print(found)
        if max_steps and found.step >= max_steps:
            _say(f"step {found.step:,} is the last one: --max-steps is {max_steps:,}")
            break

    if table.num_rows:
        _say(f"{file.path} has a line for each")
    else:
        _say("no checkpoint was scored")

    return num_damaged


class _ScoreTable:
    """Prints a line for each checkpoint as it is scored, with those of its groups below it."""

    def __init__(self) -> None:
        self._figures: list[str] = []
        self.num_rows = 0

    def print(self, found: Score) -> None:
        if not self._figures:
            self._figures = [name for name in found.results if " " not in name]
            titles = "".join(_cell(name) for name in self._figures)

            print(_LINE.format("checkpoint", "step", "rows", titles), flush=True)

        cells = ""
        for name in self._figures:
            value = found.results.get(name)
            cells += _cell(_shown(name, value))

        step = f"{found.step:,}"
        rows = f"{found.rows:,}"
        print(_LINE.format(found.checkpoint, step, rows, cells), flush=True)

        for name, value in found.results.items():
            if name in self._figures:
                continue

            cell = _cell(_shown(name, value))
            print(f"  {name:<46}{cell}", flush=True)

        self.num_rows += 1


def _cell(text: str) -> str:
    return f"{text:>{max(14, len(text) + 2)}}"


def _shown(name: str, value: float | None) -> str:
    return "-" if value is None else figure_text(name, value)


def _refuse_slice_by(context: click.Context, param: click.Parameter, said: str | None) -> None:
    if said is not None:
        fail(f"--slice-by is gone; write --group-by {shlex.quote(said)}")


def _say_done(done: set[str], file: ScoreFile) -> None:
    if done:
        _say(f"{file.path} has {len(done)} of them already; --again scores them once more")


def _say_waiting(timeout_s: float) -> None:
    _say(f"waiting for the next checkpoint, at most {duration(timeout_s)}; Ctrl-C ends it")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


eval_command = Command(
    "eval",
    params=[
        click.Argument(
            ["model_dir"],
            metavar="[MODEL_DIR]",
            default=DEFAULT_MODEL_DIR,
            type=click.Path(path_type=Path),
        ),
        Option(
            ["--checkpoint", "checkpoints"],
            multiple=True,
            metavar="NAME",
            help="Score this one, such as model.ckpt-120, and end. May be given several times.",
        ),
        Option(
            ["--eval-data"],
            default="",
            help="Files to score on, in place of those that the training was told.",
        ),
        Option(
            ["--group-by"],
            default="",
            help="Columns: the AUC of each of their values is printed too.",
        ),
        Option(["--slice-by"], hidden=True, expose_value=False, callback=_refuse_slice_by),
        Option(
            ["--max-steps"],
            type=click.IntRange(0),
            default=0,
            help="End after a checkpoint of this step or a later one; 0 = what the training was "
            "told, if it was.",
        ),
        Option(
            ["--timeout-s"],
            type=click.FloatRange(0.0),
            default=_TIMEOUT_S,
            help="End after so many seconds without a new checkpoint; 0 = score those that are "
            "there, and end.  [default: 5 hours]",
        ),
        Option(
            ["--out"],
            type=click.Path(path_type=Path),
            help=f"File to which the scores are added.  [default: MODEL_DIR/{SCORES}]",
        ),
        Option(["--again"], is_flag=True, help="Score again what the file has already."),
    ],
    help="Score each checkpoint of a model directory on held-out data, and each new one as it is "
    "saved. Needs no cluster: the checkpoint is read into this process. The task and its options "
    "are those of the last megalith train.",
    callback=_eval,
    examples=(
        "megalith eval model                        follow a job that trains",
        "megalith eval model --timeout-s 0          those that are there",
        "megalith eval model --checkpoint model.ckpt-120 --eval-data 'day8/*.parquet'",
    ),
)
