"""Whether a file is what was written: by its blocks if it has no checksum of its own."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from megalith.checkpoint.layout import blocks, manifest
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointDamaged

_CHUNK = 8 << 20
_DIGITS = 12  # of a checksum, for people


def verify(directory: Location, file: ShardFile, copy: Path | None = None) -> None:
    """CheckpointDamaged unless the file is what was written.

    `copy` has its content, if it was fetched from an object store before.
    """
    path = directory / file.name
    manifest.check_size(directory, file)
    with stored.open_file(copy or path) as content:
        check(path, content, file, lambda _: None)


def check(
    path: Location, content: IO[bytes], file: ShardFile, add_read: Callable[[int], None]
) -> None:
    """CheckpointDamaged unless `content`, which is that of `path`, is what was written.

    `add_read` is told how many bytes were read, again and again.
    """
    if file.sha256:
        _check_sha256(path, content, file, add_read)
        return

    found = blocks.blocks_of(file)
    if not found:
        raise CheckpointDamaged(f"the manifest has no checksum of {path}")

    for block in found:
        data = content.read(block.size)
        blocks.check(path, block, data)
        add_read(len(data))


def _check_sha256(
    path: Location, content: IO[bytes], file: ShardFile, add_read: Callable[[int], None]
) -> None:
    digest = hashlib.sha256()
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
        add_read(len(chunk))

    found = digest.hexdigest()
    if found != file.sha256:
        raise CheckpointDamaged(
            f"{path} is not what was written: its sha256 begins with {found[:_DIGITS]}, "
            f"the manifest says {file.sha256[:_DIGITS]}"
        )
