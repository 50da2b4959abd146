"""Opening the Arrow files of a checkpoint, and which buckets a file is about."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from megalith.checkpoint import manifest
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.manifest import ShardFile
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import Bools
from megalith.runtime.files import sync
from megalith.wire.routing import NUM_BUCKETS

_NONE = "none"


@contextmanager
def opened(directory: Path, file: ShardFile) -> Iterator[Any]:
    """A reader of the file's record batches.

    The file is read, not mapped into memory: if it is cut short meanwhile, that is an error here,
    and would be the end of the process there.
    """
    path = directory / file.name
    try:
        with pa.OSFile(str(path)) as source:
            yield pa.ipc.open_file(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise CheckpointDamaged(f"{path} cannot be read as an Arrow file: {error}") from error


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
