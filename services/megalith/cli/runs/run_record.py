"""What a run of `megalith train` leaves in its model directory: its settings and its figures.

    settings.json    the settings of the last run
    task.json        what was trained, for replicas that predict
    metrics.jsonl    a JSON object a line: figures every few seconds, and results at the end

The first two are those of the model that is there. So a run that goes on from a model writes them
once its task was accepted with that model: a start that is refused changes none of them.

Runs of one directory follow each other in metrics.jsonl; `run_id` tells them apart.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megalith.cli.runs.trained_task import trained_task
from megalith.control import ClusterStatus, MemberStatus
from megalith.replica.predicting import task_file
from megalith.runner.config import RunnerConfig
from megalith.runtime.files import add_line, write_atomically
from megalith.runtime.json_text import json_text

SETTINGS = "settings.json"
METRICS = "metrics.jsonl"


class RunRecord:
    """Writes these files. Not for several threads.

    A file that cannot be written does not end the run: `complain` is told once.
    """

    def __init__(
        self,
        model_dir: Path,
        complain: Callable[[str], None],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._model_dir = model_dir
        self._complain = complain
        self._wall_clock = wall_clock
        self._has_failed = False
        self._has_settings = False

    def write_settings(self, config: RunnerConfig) -> None:
        settings = dataclasses.asdict(config)
        text = json.dumps(settings, indent=1)

        path = self._model_dir / SETTINGS
        with self._complaining(SETTINGS):
            write_atomically(path, f"{text}\n".encode())

        task = trained_task(config, {})
        with self._complaining(task_file.NAME):
            task_file.write(self._model_dir, task.name_anywhere(), task.keywords_to_score())

        self._has_settings = True

    @property
    def has_settings(self) -> bool:
        """Whether the settings of this run are written, as far as they could be."""
        return self._has_settings

    def take(self, status: ClusterStatus, config: RunnerConfig) -> None:
        """Write the settings at the first status of a job that is accepted.

        Where there is no model yet that is at once, so that they are there before anything is
        saved.
        """
        if not self._has_settings and _is_accepted(status):
            self.write_settings(config)

    def add(self, status: ClusterStatus) -> None:
        """A line with the figures of each worker, and the results once there are some.

        A worker that a new controller has not heard yet is left out, because only its place in the
        input is known then.
        """
        workers = [
            {
                "index": member.index,
                "examples": member.examples_before + member.examples,
                "examples_per_s": member.examples_per_s,
                "loss": member.loss,
                "skipped_batches": member.skipped_batches,
                "skipped_messages": member.skipped_messages,
                "late_files": member.late_files,
                "missing_values": member.missing_values,
                "hook_errors": member.hook_errors,
                **member.metrics,
            }
            for member in status.members
            if member.role == "worker" and _is_heard(member)
        ]
        line: dict[str, Any] = {
            "time_s": self._wall_clock(),
            "run_id": status.run_id,
            "step": status.global_step,
            "workers": workers,
        }
        if status.results:
            line["results"] = status.results

        with self._complaining(METRICS):
            add_line(self._model_dir / METRICS, json_text(line))

    @contextmanager
    def _complaining(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._has_failed:
                self._complain(f"{self._model_dir / name} cannot be written: {error}")

            self._has_failed = True


def _is_heard(worker: MemberStatus) -> bool:
    """Whether it has reported, or has nothing to report: it has not trained yet."""
    return worker.global_step > 0 or not worker.position


def _is_accepted(status: ClusterStatus) -> bool:
    """Whether the task goes with the model of the directory: the chief has created its tables.

    A job may be over before anybody has seen it run.
    """
    save = status.last_save
    has_saved = save is not None and not save.error
    is_over_well = status.outcome == "succeeded" or has_saved
    return not status.last_checkpoint or status.phase == "running" or is_over_well
