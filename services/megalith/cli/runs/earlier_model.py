"""Whether the model of a directory is one of another task, or of other columns."""

import json
import shlex
from pathlib import Path
from typing import Any

from megalith.checkpoint.directory import catalog
from megalith.cli.runs.trained_task import trained_task
from megalith.replica.predicting import task_file
from megalith.runner.config import RunnerConfig
from megalith.runtime.config.settings import flag_of

_WAY_OUT = "for a model of its own use another --model-dir"
_OF_THE_MODEL = ("model", "features", "lists", "dense", "dim", "hidden")  # options of ctr


def other_than(config: RunnerConfig) -> str:
    """What to say to whoever trains these settings in the directory of another model; or empty.

    It is allowed: a task may get a new name, and a model a new column.
    """
    model_dir = Path(config.model_dir)
    earlier = _earlier(model_dir)
    if earlier is None or config.restore_ckpt or catalog.latest(model_dir) is None:
        return ""

    name, keywords = earlier
    task = trained_task(config, {})
    if _without_folder(name) != _without_folder(task.name):
        return (
            f"{model_dir} has a model of the task {_without_folder(name)}; {task.name} goes on "
            f"from it; {_WAY_OUT}"
        )

    if task.name != "ctr":
        return ""

    changed = []
    for option in _OF_THE_MODEL:
        before = keywords.get(option, "")
        if option in keywords and before != task.keywords.get(option):
            changed.append(f"{flag_of(option)}={shlex.quote(str(before))}")

    if not changed:
        return ""

    return f"{model_dir} has a model that was trained with {' '.join(changed)}; {_WAY_OUT}"


def _earlier(model_dir: Path) -> tuple[str, dict[str, Any]] | None:
    """The task that was trained there before, and its keywords; None if none is known."""
    try:
        written = json.loads((model_dir / task_file.NAME).read_bytes())
        return str(written["task"]), dict(written["keywords"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _without_folder(name: str) -> str:
    """The same file may be at another path on another machine."""
    return name.rpartition("/")[2]
