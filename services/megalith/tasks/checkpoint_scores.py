"""Evaluation by checkpoint: those of a model directory, in order, each once, as they are saved."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.checkpoint.directory import listing
from megalith.errors import InvalidRequest
from megalith.runtime.files import add_line
from megalith.runtime.json_text import json_text
from megalith.tasks.scoring import load_model
from megalith.worker.task import Task

SCORES = "eval.jsonl"
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """The figures of one checkpoint, a line of eval.jsonl.

    `step` includes what increments have brought since the checkpoint. `settings` tells evaluations
    apart: it is the same for the same task with the same options and held-out files. `time_s` is
    when it was scored, in Unix seconds, and `seconds` how long that took. A result that is NaN is
    null in the file.
    """

    checkpoint: str
    step: int
    increments: int
    rows: int
    settings: str
    time_s: float
    seconds: float
    results: dict[str, float]


def score(task: Task[Any], directory: Path, settings: str) -> Score:
    """Load a checkpoint and have the task evaluate it.

    CheckpointNotFound if it is gone, or goes while it is read; CheckpointDamaged if it is damaged.
    """
    started = time.monotonic()
    model = load_model(directory)
    model.check_fits(task)
    results = task.evaluate(model.read)
    if not results:
        raise InvalidRequest(
            "the task evaluates nothing: name the data, for example --eval-data day7.parquet; "
            "a task of your own needs predict() and held_out()"
        )

    return Score(
        checkpoint=directory.name,
        step=model.step,
        increments=model.restored.increments,
        rows=model.restored.rows,
        settings=settings,
        time_s=time.time(),
        seconds=time.monotonic() - started,
        results=results,
    )


def follow(
    model_dir: Path,
    done: set[str],
    timeout_s: float,
    on_wait: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Path]:
    """The checkpoints that the list of the directory names, oldest first, and then each new one.

    It ends after `timeout_s` without a new one; the time in which the caller works with one does
    not count. Names in `done` are left out. `on_wait` is called when a wait begins.
    """
    seen = set(done)
    while True:
        new = [name for name in listing.read(model_dir).time_by_name if name not in seen]

        if not new and not _wait(model_dir, seen, timeout_s, on_wait, clock, sleep):
            return

        for name in new:
            seen.add(name)
            yield model_dir / name


def _wait(
    model_dir: Path,
    seen: set[str],
    timeout_s: float,
    on_wait: Callable[[], None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> bool:
    """Whether the list has a new name before the time is over."""
    if not timeout_s:
        return False

    on_wait()
    deadline = clock() + timeout_s
    while clock() < deadline:
        if any(name not in seen for name in listing.read(model_dir).time_by_name):
            return True

        sleep(_POLL_S)

    return False


class ScoreFile:
    """eval.jsonl of a model directory: a JSON object a line, in the order of scoring."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: Score) -> None:
        add_line(self.path, json_text(line))

    def names(self, *settings: str) -> set[str]:
        """The checkpoints that were scored with one of these settings.

        A line that is cut off, as a killed process leaves it, is passed over: its checkpoint is
        scored again.
        """
        try:
            lines = self.path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return set()

        found = set()
        for line in lines:
            try:
                content = json.loads(line)
            except ValueError:
                continue

            if isinstance(content, dict) and content.get("settings") in settings:
                found.add(str(content.get("checkpoint")))

        return found
