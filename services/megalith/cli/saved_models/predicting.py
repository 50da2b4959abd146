"""`megalith predict`: what a trained model says of each example, without a cluster."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.storage.location import Location
from megalith.cli.ctl.answers import errors_as_one_line
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR
from megalith.cli.runs.job_file import arguments_of
from megalith.cli.runs.recorded_task import recorded_task
from megalith.errors import CheckpointNotFound, InvalidSetting
from megalith.runner.config import json_or_text
from megalith.runtime.config.commands import Command, Option
from megalith.runtime.counting import counted
from megalith.tasks.predicting import write_predictions
from megalith.tasks.scoring import load_model

_NAME = "megalith predict"
_MODEL_DIR = "--model-dir="
_OTHER_FORMATS = (".csv", ".tsv", ".json", ".jsonl", ".txt")


def _predict(
    model: Path,
    out: Path,
    data: str,
    fields: str,
    checkpoint: str,
    keywords: tuple[str, ...],
    overwrite: bool,
) -> int:
    started = time.monotonic()
    with errors_as_one_line(_NAME):
        model_dir = _model_dir(model)
        _check_out(out, overwrite)
        directory = _checkpoint(model_dir, checkpoint)
        changes = _changes(keywords)
        recorded = recorded_task(model_dir, changes)

        if data:
            recorded = recorded.with_data(data, changes)

        task = recorded.load_to_score()
        saved = load_model(Path(str(directory)))
        saved.check_fits(task)

        names = []
        for field in fields.split(","):
            name = field.strip()
            if name:
                names.append(name)

        num_rows = write_predictions(task, saved.read, out, names)

    took_s = time.monotonic() - started
    source = f"{directory.name} (step {saved.step:,})"
    predictions = counted(num_rows, "prediction")
    print(f"{out}: {predictions} of {source} in {took_s:.1f} s", file=sys.stderr)
    return 0


def _model_dir(model: Path) -> Path:
    """A model directory, or the one that the file of a job names."""
    if model.suffix == ".toml":
        named = [each for each in arguments_of(str(model)) if each.startswith(_MODEL_DIR)]
        if not named:
            raise InvalidSetting(
                f'{model} names no model directory: write model_dir = "..." into it, or give the '
                "directory instead of the file"
            )

        model = Path(named[-1].removeprefix(_MODEL_DIR))

    if not model.is_dir():
        raise InvalidSetting(f"{model} is no directory: where was the model trained?")

    return model


def _check_out(out: Path, overwrite: bool) -> None:
    if not out.parent.is_dir():
        raise InvalidSetting(f"--out={out}: there is no folder {out.parent}")
    if out.is_dir():
        raise InvalidSetting(f"--out={out} is a folder, expected the name of a file")

    if out.suffix in _OTHER_FORMATS:
        parquet = out.with_suffix(".parquet")
        raise InvalidSetting(f"--out={out}: predictions are written as Parquet; use {parquet}")

    if out.exists() and not overwrite:
        raise InvalidSetting(f"--out={out} exists; --overwrite writes it anew")


def _checkpoint(model_dir: Path, name: str) -> Location:
    if name:
        inside = model_dir / name
        return inside if inside.exists() else Path(name)

    if (model_dir / MANIFEST).exists():
        raise InvalidSetting(
            f"{model_dir} is a checkpoint: megalith predict {model_dir.parent} "
            f"--checkpoint {model_dir.name}"
        )

    newest = catalog.latest(model_dir)
    if newest is None:
        raise CheckpointNotFound(f"{model_dir} has no checkpoint: nothing was trained there yet")

    return newest


def _changes(keywords: tuple[str, ...]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for text in keywords:
        name, is_pair, value = text.partition("=")
        if not is_pair:
            raise InvalidSetting(f"--set={text}: expected KEYWORD=VALUE")

        changes[name] = json_or_text(value)

    return changes


predict = Command(
    "predict",
    params=[
        click.Argument(
            ["model"],
            metavar="[MODEL_DIR]",
            default=DEFAULT_MODEL_DIR,
            type=click.Path(path_type=Path),
        ),
        Option(
            ["--out"],
            required=True,
            type=click.Path(path_type=Path),
            help="The Parquet file that is written, a row for each example.",
        ),
        Option(["--overwrite"], is_flag=True, help="Write the file anew if it exists."),
        Option(
            ["--data"],
            default="",
            help="Files to predict. They need no labels.  [default: what the training held out; "
            "of ctr without --eval-data: what it was trained on]",
        ),
        Option(
            ["--fields"],
            default="",
            metavar="NAMES",
            help="Columns of the input that are written beside the predictions.",
        ),
        Option(
            ["--checkpoint"],
            default="",
            metavar="NAME",
            help="Predict with this one, such as model.ckpt-120.  [default: the newest]",
        ),
        Option(
            ["--set", "keywords"],
            multiple=True,
            metavar="KEYWORD=VALUE",
            help="A keyword of the task, in place of what the training was told.",
        ),
    ],
    help="Write what a trained model says of each example to a Parquet file. Needs no cluster: the "
    "checkpoint is read into this process. The task and its options are those of the last megalith "
    "train. Instead of the directory, the TOML file of the job may be given.",
    callback=_predict,
    examples=(
        "megalith predict model --data 'day8/*.parquet' --fields user,item --out day8.parquet",
        "megalith predict job.toml --out predictions.parquet",
    ),
)
