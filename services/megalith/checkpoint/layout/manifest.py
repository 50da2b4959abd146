"""The manifest: what a checkpoint consists of, and whether its files are what was written.

Its last field is its own checksum (signed_json.py). Manifests of early versions have none.
"""

import dataclasses
import hashlib
import json
from typing import Any

from megalith.checkpoint.format import FORMAT_VERSION, MANIFEST, READ_VERSIONS, FileKind
from megalith.checkpoint.layout import signed_json
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage import object_folders
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.object_path import ObjectPath
from megalith.errors import CheckpointDamaged, CheckpointNotFound


@dataclasses.dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of a checkpoint. `rows` counts what is in it.

    `buckets` are those that it is about: of the ids in a table's file, of the server that wrote it
    for the others. They are ranges such as "0-511,600-600", or "none"; empty = unknown, any.

    `held` is said by an increment, of the files of tables: how many rows their server had.

    `blocks` are those of a table's file, as blocks.py reads them; none in early versions. A file
    with blocks has no `sha256`: they are all of its bytes, and each has a checksum. Version 4 has
    both. `through` is said of a table's file too: the set of its server's delta log up to which all
    changes are in it.
    """

    name: str
    kind: FileKind
    table: str
    rows: int
    bytes: int
    sha256: str
    buckets: str = ""
    held: int = 0
    through: int = 0
    blocks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """What an increment goes on from, and its place in the chain.

    `base` is the save id of the full checkpoint below it, `number` counts from 1, and
    `previous_sha256` is the checksum of the manifest before it: that of increment number - 1, or of
    the base.
    """

    base: str
    number: int
    previous_sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What a complete checkpoint consists of. `saved_at_s` is when its save began, Unix seconds.

    `save_id` is empty in early versions. An increment has a `link`. One that is `dense_only` has
    the variables alone, so that no job starts from it.
    """

    step: int
    num_ps: int
    saved_at_s: float
    files: tuple[ShardFile, ...]
    # By worker, base64: where its input goes on. Only the reader of the input looks into one.
    cursors: tuple[str, ...] = ()
    # What the input is called that the cursors are of, as the job names it
    input_name: str = ""
    # Batches, about, that were trained after the cursors were taken and may be in the rows too.
    repeated_batches: int = 0
    save_id: str = ""
    link: Link | None = None
    dense_only: bool = False

    @property
    def rows(self) -> int:
        """Embedding rows in all tables; of an increment, those of the chain up to it."""
        if self.link is not None:
            return sum(file.held for file in self.files)

        return sum(file.rows for file in self.files if file.kind == FileKind.TABLE)


def write(directory: Location, manifest: Manifest) -> None:
    """Say what the files of a directory are; they are on disk before the manifest is.

    On an object store that makes no checkpoint of it yet: `catalog.publish` does.
    """
    content = {"format": FORMAT_VERSION, **dataclasses.asdict(manifest)}
    signed = signed_json.encode(content)

    stored.sync(directory)
    stored.write(before_publishing(directory, manifest.save_id), signed)


def before_publishing(directory: Location, save_id: str) -> Location:
    """Where the manifest of a save is until `catalog.publish`."""
    if isinstance(directory, ObjectPath):
        return object_folders.unpublished(directory, save_id)

    return directory / MANIFEST


def read(directory: Location) -> Manifest:
    """The manifest of a complete checkpoint; the files themselves are not looked at."""
    content, _ = read_with_sha256(directory)
    return content


def read_with_sha256(directory: Location) -> tuple[Manifest, str]:
    """The same, and the checksum by which the next increment names it."""
    data = _read_bytes(directory)
    content = _parsed(directory / MANIFEST, data)
    return content, hashlib.sha256(data).hexdigest()


def _parsed(path: Location, data: bytes) -> Manifest:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise CheckpointDamaged(f"{path} is not JSON: {error}") from error

    version = content.pop("format", None) if isinstance(content, dict) else None
    if version not in READ_VERSIONS:
        raise CheckpointDamaged(f"{path} has format {version}, this version reads {READ_VERSIONS}")

    stated = content.pop("checksum", None)
    signed_json.check_whole(path, data, stated)
    try:
        return _manifest(content)
    except (TypeError, KeyError) as error:
        raise CheckpointDamaged(f"{path} lacks or misnames a field: {error}") from error


def _read_bytes(directory: Location) -> bytes:
    path = directory / MANIFEST
    try:
        with stored.allowed(path):
            return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if not directory.is_dir():
            raise CheckpointNotFound(
                f"there is no folder {directory}; `megalith ckpt ls MODEL_DIR` lists the "
                "checkpoints of a model directory"
            ) from None

        raise CheckpointNotFound(
            f"{directory} has no {MANIFEST}: not a complete checkpoint"
        ) from None


def _manifest(content: dict[str, Any]) -> Manifest:
    about_files = content.pop("files")
    files = tuple(file_of(about) for about in about_files)

    link = None
    about_link = content.pop("link", None)
    if about_link is not None:
        link = Link(**about_link)

    cursors = content.pop("cursors", ())
    return Manifest(
        **content,
        files=files,
        link=link,
        cursors=tuple(cursors),
    )


def check_has_rows(directory: Location, content: Manifest) -> None:
    """CheckpointNotFound for a checkpoint of variables alone: a job would start without rows."""
    if content.dense_only:
        raise CheckpointNotFound(
            f"{directory} is a dense-only checkpoint: it has variables and no rows; start from a "
            f"full one, and give --restore-dense={directory} to take the variables of this one"
        )


def file_of(about: dict[str, Any]) -> ShardFile:
    """A file by its fields, as JSON has them."""
    file = ShardFile(**about)
    if file.kind not in list(FileKind):
        raise CheckpointDamaged(
            f"{file.name} is of unknown kind {file.kind!r}: written by a newer version"
        )

    return dataclasses.replace(file, kind=FileKind(file.kind), blocks=tuple(file.blocks))


def check_size(directory: Location, file: ShardFile) -> None:
    """CheckpointDamaged unless the file is there, with the length that was written."""
    path = directory / file.name
    try:
        with stored.allowed(path):
            size = path.stat().st_size
    except FileNotFoundError:
        raise CheckpointDamaged(f"{path} is missing") from None

    if size != file.bytes:
        raise CheckpointDamaged(f"{path} has {size} bytes, the manifest says {file.bytes}")


def sha256_of(path: Location) -> str:
    with stored.allowed(path), stored.fetched(path) as copy, open(copy, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
