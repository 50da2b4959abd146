"""The manifest: what a checkpoint consists of, and whether its files are what was written.

Its last field is its own checksum: the sha256 of the manifest with nothing between the quotes of
that field. Manifests of early versions have none.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from megalith.checkpoint.format import FORMAT_VERSION, MANIFEST, READ_VERSIONS, FileKind
from megalith.errors import CheckpointDamaged, CheckpointNotFound
from megalith.runtime.files import sync, write_atomically

_NO_CHECKSUM = '"checksum": ""'


@dataclasses.dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of a checkpoint. `rows` counts what is in it.

    `buckets` are those that it is about: of the ids in a table's file, of the server that wrote it
    for the others. They are ranges such as "0-511,600-600", or "none"; empty = unknown, any.

    `held` is said by an increment, of the files of tables: how many rows their server had.
    """

    name: str
    kind: FileKind
    table: str
    rows: int
    bytes: int
    sha256: str
    buckets: str = ""
    held: int = 0


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

    `save_id` is empty in early versions. An increment has a `link`.
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

    @property
    def rows(self) -> int:
        """Embedding rows in all tables; of an increment, those of the chain up to it."""
        if self.link is not None:
            return sum(file.held for file in self.files)

        return sum(file.rows for file in self.files if file.kind == FileKind.TABLE)


def write(directory: Path, manifest: Manifest) -> None:
    """Say what the files of a directory are; they are on disk before the manifest is."""
    content = {"format": FORMAT_VERSION, **dataclasses.asdict(manifest), "checksum": ""}
    text = json.dumps(content, indent=1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    signed = text.replace(_NO_CHECKSUM, _checksum_field(digest))

    sync(directory)
    write_atomically(directory / MANIFEST, signed.encode())


def read(directory: Path) -> Manifest:
    """The manifest of a complete checkpoint; the files themselves are not looked at."""
    path = directory / MANIFEST
    try:
        data = path.read_bytes()
        content = json.loads(data)
    except FileNotFoundError:
        raise CheckpointNotFound(
            f"{directory} has no {MANIFEST}: not a complete checkpoint"
        ) from None
    except ValueError as error:
        raise CheckpointDamaged(f"{path} is not JSON: {error}") from error

    version = content.pop("format", None) if isinstance(content, dict) else None
    if version not in READ_VERSIONS:
        raise CheckpointDamaged(f"{path} has format {version}, this version reads {READ_VERSIONS}")

    _check_whole(path, data, content.pop("checksum", None))
    try:
        files = tuple(_file(about) for about in content.pop("files"))
        content["cursors"] = tuple(content.get("cursors", ()))
        link = content.pop("link", None)
        return Manifest(**content, files=files, link=None if link is None else Link(**link))
    except (TypeError, KeyError) as error:
        raise CheckpointDamaged(f"{path} lacks or misnames a field: {error}") from error


def _check_whole(path: Path, data: bytes, stated: Any) -> None:
    """CheckpointDamaged unless the manifest is as it was written; early ones do not say it."""
    if stated is None:
        return

    unsigned = data.replace(_checksum_field(stated).encode(), _NO_CHECKSUM.encode())
    digest = hashlib.sha256(unsigned).hexdigest()
    if digest != stated:
        raise CheckpointDamaged(
            f"{path} was changed after it was written: its sha256 is {digest}, "
            f"its field checksum says {stated}"
        )


def _checksum_field(digest: str) -> str:
    return f'"checksum": "{digest}"'


def _file(about: dict[str, Any]) -> ShardFile:
    file = ShardFile(**about)
    if file.kind not in list(FileKind):
        raise CheckpointDamaged(
            f"{file.name} is of unknown kind {file.kind!r}: written by a newer version"
        )

    return dataclasses.replace(file, kind=FileKind(file.kind))


def verify(directory: Path, file: ShardFile) -> None:
    """CheckpointDamaged unless the file is what was written."""
    path = directory / file.name
    check_size(directory, file)
    digest = sha256_of(path)
    if digest != file.sha256:
        raise CheckpointDamaged(f"{path} has sha256 {digest}, the manifest says {file.sha256}")


def check_size(directory: Path, file: ShardFile) -> None:
    """CheckpointDamaged unless the file is there, with the length that was written."""
    path = directory / file.name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise CheckpointDamaged(f"{path} is missing") from None

    if size != file.bytes:
        raise CheckpointDamaged(f"{path} has {size} bytes, the manifest says {file.bytes}")


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
