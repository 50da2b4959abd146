"""The task of a run, made from the settings that `megalith train` left in the model directory."""

import json
from pathlib import Path
from typing import Any

from megalith.cli.runs.run_record import SETTINGS
from megalith.cli.runs.trained_task import TrainedTask, trained_task
from megalith.errors import InvalidSetting
from megalith.runner.config import RunnerConfig


def recorded_task(model_dir: Path, changes: dict[str, Any]) -> TrainedTask:
    """What was trained in a directory, with some keywords changed.

    InvalidSetting if `megalith train` left no settings there.
    """
    path = model_dir / SETTINGS
    try:
        values = json.loads(path.read_bytes())
        config = RunnerConfig.load(environ={}, **values)
    except FileNotFoundError:
        raise InvalidSetting(
            f"{path} is missing: it says which task was trained, and is written by megalith train "
            "and megalith up"
        ) from None
    except (ValueError, TypeError) as error:
        raise InvalidSetting(f"{path} has no settings of a run: {error}") from error

    return trained_task(config, changes)
