"""What a run of `megalith train` leaves in its model directory: its settings, and its figures.

    settings.json    the settings of the last run
    metrics.jsonl    a JSON object a line: figures every few seconds, and results at the end

Runs of one directory follow each other in metrics.jsonl; `run_id` tells them apart.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megalith.control import ClusterStatus
from megalith.runner.config import RunnerConfig
from megalith.runtime.files import open_plain, write_atomically

SETTINGS = "settings.json"
METRICS = "metrics.jsonl"


class RunRecord:
    """Writes both files. Not for several threads.

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

    def write_settings(self, config: RunnerConfig) -> None:
        text = json.dumps(dataclasses.asdict(config), indent=1)
        with self._complaining(SETTINGS):
            write_atomically(self._model_dir / SETTINGS, f"{text}\n".encode())

    def add(self, status: ClusterStatus) -> None:
        """A line with the figures of each worker, and the results once there are some."""
        workers = [
            {
                "index": member.index,
                "examples": member.examples,
                "examples_per_s": member.examples_per_s,
                "loss": member.loss,
                **member.metrics,
            }
            for member in status.members
            if member.role == "worker"
        ]
        line: dict[str, Any] = {
            "time_s": self._wall_clock(),
            "run_id": status.run_id,
            "step": status.global_step,
            "workers": workers,
        }
        if status.results:
            line["results"] = status.results

        with self._complaining(METRICS), open_plain(self._model_dir / METRICS, "ab") as file:
            file.write(f"{json.dumps(line)}\n".encode())

    @contextmanager
    def _complaining(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._has_failed:
                self._complain(f"{self._model_dir / name} cannot be written: {error}")

            self._has_failed = True
