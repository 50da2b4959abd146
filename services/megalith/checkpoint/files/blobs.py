"""The file of a ps's blobs in a checkpoint, and in each of its increments.

One row per blob: name, data. A ps without blobs writes no file. An increment has all blobs, so
those of the last increment count, and with no file there is none.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megalith.checkpoint.format import FileKind, blobs_file_name
from megalith.checkpoint.layout import arrow_files
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointDamaged
from megalith.wire import routing

_SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field("data", pa.large_binary())])


class SavedBlob(NamedTuple):
    """A blob of a file, whose data is read when asked for."""

    name: str
    data: pa.LargeBinaryScalar

    @property
    def size(self) -> int:
        return len(self.data.as_buffer())

    def read(self) -> bytes:
        """A copy of its data."""
        return bytes(self.data.as_py())


def write(blobs: Mapping[str, bytes], directory: Path, suffix: str) -> list[ShardFile]:
    """Write the file of a ps, if it has blobs; returns what was written."""
    if not blobs:
        return []

    path = directory / blobs_file_name(suffix)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        for name, data in blobs.items():
            names = pa.array([name], pa.string())
            columns = [names, _data_column(data)]
            batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
            writer.write_batch(batch)

    return [arrow_files.written(path, FileKind.BLOBS, "", len(blobs))]


def _data_column(data: bytes) -> pa.LargeBinaryArray:
    """One row, without a copy of its data."""
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 1, [None, offsets, pa.py_buffer(data)]
    )


def files_of(content: Manifest) -> list[ShardFile]:
    return [file for file in content.files if file.kind is FileKind.BLOBS]


def read(reader: Any, file: ShardFile) -> Iterator[SavedBlob]:
    """The blobs of one file; CheckpointDamaged at the end unless they are as many as it had."""
    rows = 0

    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        rows += batch.num_rows

        names = batch.column("name").to_pylist()
        for name, data in zip(names, batch.column("data"), strict=True):
            if name is None or not data.is_valid:
                raise CheckpointDamaged(f"{file.name} has a blob without a name or without data")

            yield SavedBlob(name, data)

    if rows != file.rows:
        raise CheckpointDamaged(f"{file.name} has {rows} blobs, the manifest says {file.rows}")


def owned(
    directory: Location, content: Manifest, owners: NDArray[np.uint16], index: int
) -> dict[str, bytes]:
    """The blobs that ps `index` holds, out of the verified files of any number of servers."""
    mine = owners == index
    num_ps = int(owners.max()) + 1
    found: dict[str, bytes] = {}
    for file in files_of(content):
        if not (arrow_files.buckets_of(file) & mine).any():
            continue

        with arrow_files.verified(directory, file) as reader:
            for blob in read(reader, file):
                if routing.part_owner(owners, num_ps, blob.name, 0) != index:
                    continue

                if blob.name in found:
                    raise CheckpointDamaged(f"{directory} has blob {blob.name!r} twice")

                found[blob.name] = blob.read()

    return found
