"""`megalith export`: a checkpoint as a model that replicas serve without a cluster."""

import sys
import time
from pathlib import Path

import click

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.exported import versions
from megalith.checkpoint.exported.writing import Export
from megalith.checkpoint.exported.writing import export as write_export
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.storage.location import Location, is_url, locate, resolved
from megalith.cli.ckpt.text import size
from megalith.cli.ctl.answers import errors_as_one_line
from megalith.cli.ctl.which_job import DEFAULT_MODEL_DIR
from megalith.errors import CheckpointNotFound, InvalidSetting
from megalith.local.model import LocalModel
from megalith.replica.predicting import task_file
from megalith.runtime.config.commands import Command, Option
from megalith.runtime.counting import counted

_NAME = "megalith export"


def _export(model_dir: str, checkpoint: str, to: str) -> int:
    started = time.monotonic()
    with errors_as_one_line(_NAME):
        source, directory = _source(locate(model_dir), checkpoint)
        base = _base(source, to)
        chain = increments.read_chain(directory)
        model = LocalModel()
        model.restore(directory, over_budget=True)
        try:
            export = write_export(model, chain, base, _task_of(source))
        except OSError as error:
            raise InvalidSetting(f"{base}: nothing was exported: {error}") from error

        removed = []
        if not to and isinstance(source, Path):
            removed = versions.clean_up(base, source)

    _say(export, removed, time.monotonic() - started)
    return 0


def _source(given: Location, name: str) -> tuple[Location, Location]:
    """A model directory and the checkpoint to export; the path of a checkpoint says both."""
    if not name and (given / MANIFEST).exists():
        return given.parent, given

    return given, _checkpoint(given, name)


def _checkpoint(model_dir: Location, name: str) -> Location:
    if isinstance(model_dir, Path) and not model_dir.is_dir():
        raise InvalidSetting(f"{model_dir} is no directory: where was the model trained?")
    if name:
        return resolved(model_dir, name)

    newest = catalog.latest(model_dir)
    if newest is None:
        raise CheckpointNotFound(f"{model_dir} has no checkpoint: nothing was trained there yet")

    return newest


def _base(model_dir: Location, to: str) -> Path:
    if to and not is_url(to):
        return Path(to)
    if to or not isinstance(model_dir, Path):
        raise InvalidSetting("--to: give a local folder; an exported model is written to a disk")

    return model_dir / versions.FOLDER


def _task_of(model_dir: Location) -> list[Path]:
    """The file by which a replica predicts, if there is one."""
    if not isinstance(model_dir, Path):
        return []

    path = model_dir / task_file.NAME
    return [path] if path.exists() else []


def _say(export: Export, removed: list[str], took_s: float) -> None:
    model = export.model
    print(export.directory)

    source = model.checkpoint
    if model.increments:
        increments = counted(model.increments, "increment")
        source += f" with {increments}"

    rows = counted(model.rows, "row")
    variables = counted(model.variables.rows, "variable")
    num_bytes = size(model.bytes)

    lines = [
        f"{source}, step {model.step:,}: {rows}, {variables}, {num_bytes} in {took_s:.1f} s",
    ]

    for table, count in export.not_finite.items():
        if count:
            left_out = counted(count, "row")
            lines.append(f"{left_out} of table {table} left out: NaN or infinite")

    if removed:
        names = ", ".join(removed)
        lines.append(f"removed, because their checkpoints are gone: {names}")

    print("\n".join(lines), file=sys.stderr)


export = Command(
    "export",
    params=[
        click.Argument(["model_dir"], metavar="[MODEL_DIR]", default=DEFAULT_MODEL_DIR),
        Option(
            ["--checkpoint"],
            default="",
            metavar="NAME",
            help="Export this one, such as model.ckpt-120.  [default: the newest]",
        ),
        Option(
            ["--to"],
            default="",
            metavar="DIR",
            help="Folder in which the version is made.  [default: exported_models in the model "
            "directory, where versions whose checkpoint is gone are removed]",
        ),
    ],
    help="Write a checkpoint and its increments as a model that replicas serve without a cluster: "
    "rows as serving stores them, and dense variables; nothing that trains them. Prints the folder "
    "of the new version. Needs memory for the whole checkpoint.",
    callback=_export,
    examples=(
        "megalith export model",
        "megalith export model/model.ckpt-120",
        "megalith replica --export model/exported_models",
    ),
)
