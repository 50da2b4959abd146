"""Opening the Arrow files of a checkpoint, and which buckets a file is about."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import integrity, manifest
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.checkpoint.storage.object_store import StorageFailed
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import Bools
from megalith.runtime.files import sync
from megalith.wire.routing import NUM_BUCKETS

_NONE = "none"


@contextmanager
def opened(directory: Location, file: ShardFile) -> Iterator[Any]:
    """A reader of the file's record batches."""
    path = directory / file.name
    with damaged_if_invalid(path), stored.allowed(path), stored.opened(path) as source:
        yield pa.ipc.open_file(source)


@contextmanager
def damaged_if_invalid(path: Location) -> Iterator[None]:
    """Inside, what Arrow cannot read is a CheckpointDamaged."""
    try:
        yield
    except StorageFailed:
        raise  # that says nothing about the file
    except (pa.ArrowInvalid, OSError) as error:
        raise CheckpointDamaged(f"{path} cannot be read as an Arrow file: {error}") from error


@contextmanager
def verified(directory: Location, file: ShardFile) -> Iterator[Any]:
    """The same, after a check that it is the file that was written.

    What is on an object store is fetched once, for both.
    """
    manifest.check_size(directory, file)  # what is missing or cut short is not fetched
    with stored.fetched(directory / file.name) as copy:
        integrity.verify(directory, file, copy)
        with damaged_if_invalid(directory / file.name), stored.opened(copy) as source:
            yield pa.ipc.open_file(source)


def written(path: Path, kind: FileKind, table: str, rows: int) -> ShardFile:
    """What a manifest says about a file that is complete; it is on disk after this."""
    sync(path)
    return ShardFile(
        name=path.name,
        kind=kind,
        table=table,
        rows=rows,
        bytes=path.stat().st_size,
        sha256=manifest.sha256_of(path),
    )


def ranges_of(buckets: Bools) -> str:
    """Buckets as a manifest names them: "0-511,600", or "none"."""
    between_others = np.concatenate([[False], buckets, [False]])
    changes = np.diff(between_others.astype(np.int8))
    edges = np.flatnonzero(changes)
    pairs = edges.reshape(-1, 2).tolist()

    ranges = []
    for first, end in pairs:
        ranges.append(f"{first}-{end - 1}")

    return ",".join(ranges) or _NONE


def buckets_of(file: ShardFile) -> Bools:
    """The buckets that the manifest says a file is about; all of them where it does not say."""
    if not file.buckets:
        return np.ones(NUM_BUCKETS, np.bool_)

    buckets = np.zeros(NUM_BUCKETS, np.bool_)
    if file.buckets == _NONE:
        return buckets

    try:
        for part in file.buckets.split(","):
            first, last = map(int, part.split("-"))
            buckets[first : last + 1] = True
    except ValueError as error:
        raise CheckpointDamaged(
            f"the manifest gives {file.name} the buckets {file.buckets!r}: {error}"
        ) from error

    return buckets
