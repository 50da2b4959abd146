"""The task of a run: its name, and the keywords that its factory is called with."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.runner.config import RunnerConfig
from megalith.runtime.config.settings import build
from megalith.runtime.task_loading import load_task
from megalith.worker.config import TaskSettings
from megalith.worker.task import Task

_CTR = "ctr"
_WINDOW = ("start", "end", "overwrite_end_date")
# What ctr is told of its training: another value gives a checkpoint the same score. An option that
# is not among them is taken for one that changes it, so that a new one does no harm.
_OF_TRAINING = (
    *_WINDOW,
    "data",
    "index",
    "num_tracks",
    "batch_size",
    "num_examples",
    "seed",
    "time",
    "follow",
    "on_lost_data",
    "kafka_timeout_s",
    "row_rate",
    "warmup_steps",
    "rate",
    "clip_norm",
    "threads",
    "epochs",
    "shuffle",
    "expire_days",
    "min_count",
)


@dataclass(frozen=True, slots=True)
class TrainedTask:
    """A task by name, and the keywords that its factory is called with."""

    name: str
    keywords: dict[str, Any]
    max_steps: int

    @property
    def score_digest(self) -> str:
        """The same for evaluations that give a checkpoint the same score.

        Of ctr only columns, model and held-out files count. Of a task of the user's nobody knows
        which keywords change a score, so all do.
        """
        if self.name != _CTR:
            return self.digest

        keywords = dict(self.keywords)
        for name in _OF_TRAINING:
            keywords.pop(name, None)

        if "eval_index" in keywords:  # its name says which files, wherever the model lies
            keywords["eval_index"] = Path(keywords["eval_index"]).name

        return _digest([self.name, keywords])

    @property
    def digest(self) -> str:
        """The same for the same task with the same keywords; early versions told scores by it."""
        return _digest([self.name, self.keywords])

    def with_data(self, data: str, changes: dict[str, Any]) -> "TrainedTask":
        """With other files to predict, and some keywords changed.

        The files that ctr held out would go before them. The window of the training would choose
        among them, so it is left out, unless it is among the changes.
        """
        keywords = self.keywords | changes | {"data": data}
        if self.name == _CTR:
            keywords.pop("eval_data", None)
            for name in _WINDOW:
                if name not in changes:
                    keywords.pop(name, None)

        return dataclasses.replace(self, keywords=keywords)

    def keywords_to_score(self) -> dict[str, Any]:
        """For evaluation and prediction: data to train on may be gone."""
        keywords = dict(self.keywords)
        if self.name == _CTR:
            keywords["scores_only"] = True

        return keywords

    def load_to_score(self) -> Task[Any]:
        task: Task[Any] = load_task(self.name, self.keywords_to_score())
        return task

    def name_anywhere(self) -> str:
        """The name by which a process in another folder finds the task."""
        path, _, factory = self.name.rpartition(":")
        if not path.endswith(".py"):
            return self.name

        return f"{Path(path).resolve()}:{factory}"


def _digest(content: list[Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode())
    return digest.hexdigest()[:8]


def trained_task(config: RunnerConfig, changes: dict[str, Any]) -> TrainedTask:
    """What the workers of a job train, with some keywords changed."""
    task = build(TaskSettings, config.settings_of("worker"))
    keywords = task.keywords() | changes

    if "eval_data" in changes:
        keywords.pop("eval_index", None)  # it counts the rows of other files

    return TrainedTask(task.task, keywords, task.max_steps)
