"""What an exported model consists of, and whether its files are what was written.

    exported_models/1790003600/        one version; it never changes
        exported.json                  what it is, and its files                this module
        table-0000-<table>.arrow       ids, compressed rows, update times       row_files.py
        variables.arrow                dense variables, without optimizers      files/variables.py

It has no file that a checkpoint must have, so no job starts from it.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from megalith.checkpoint.format import MANIFEST, FileKind
from megalith.checkpoint.layout import signed_json
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage import files as stored
from megalith.errors import CheckpointDamaged, CheckpointNotFound

FILE = "exported.json"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class ExportedModel:
    """A model that can be served without its job.

    `checkpoint` is the folder that it was made of, and `increments` how many of it. `saved_at_s`
    is when the newest of them was saved, Unix seconds: everything before it is in the model.
    """

    version: int
    checkpoint: str
    increments: int
    step: int
    saved_at_s: float
    exported_at_s: float
    files: tuple[ShardFile, ...]

    @property
    def tables(self) -> list[ShardFile]:
        return [file for file in self.files if file.kind is FileKind.TABLE]

    @property
    def variables(self) -> ShardFile:
        (file,) = [file for file in self.files if file.kind is FileKind.VARIABLES]
        return file

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.tables)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def write(directory: Path, model: ExportedModel) -> None:
    """Say what the files of a folder are; they are on disk before."""
    content = {"format": FORMAT_VERSION, **dataclasses.asdict(model)}
    stored.sync(directory)
    stored.write(directory / FILE, signed_json.encode(content))


def read(directory: Path) -> ExportedModel:
    """What a folder says of itself; the other files are not looked at.

    CheckpointNotFound if it is no exported model, CheckpointDamaged if the file was changed.
    """
    path = directory / FILE
    try:
        data = path.read_bytes()
        content = json.loads(data)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointNotFound(_not_one(directory)) from None
    except ValueError as error:
        raise CheckpointDamaged(f"{path} is not JSON: {error}; export the model again") from error

    version = content.pop("format", None) if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise CheckpointDamaged(
            f"{path} has format {version}, this version reads {FORMAT_VERSION}; export the model "
            "again with this version"
        )

    signed_json.check_whole(path, data, content.pop("checksum", ""))
    try:
        files = tuple(_file(about) for about in content.pop("files"))
        return ExportedModel(**content, files=files)
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointDamaged(f"{path} lacks or misnames a field: {error}") from error


def _file(about: dict[str, Any]) -> ShardFile:
    file = ShardFile(**about)
    return dataclasses.replace(file, kind=FileKind(file.kind), blocks=tuple(file.blocks))


def _not_one(directory: Path) -> str:
    if (directory / MANIFEST).exists():
        return f"{directory} is a checkpoint, not an exported model: run megalith export first"

    return f"{directory} has no {FILE}: it is not an exported model; megalith export writes one"
