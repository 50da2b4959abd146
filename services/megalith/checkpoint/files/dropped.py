"""The file of ids whose rows are gone, in an increment.

Its columns are bucket and id. The schema's metadata has the data time of the table under
"max_update_s". Ids may be in it that never were in a checkpoint.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import I64
from megalith.wire import routing

_DATA_TIME = b"max_update_s"


def write(ids: I64, data_time_s: int, table: str, directory: Path, name: str) -> ShardFile:
    buckets = routing.buckets_of(ids).astype(np.uint16)
    columns = {
        "bucket": pa.array(buckets),
        "id": pa.array(ids),
    }
    batch = pa.record_batch(columns)

    metadata = {_DATA_TIME: str(data_time_s)}
    schema = batch.schema.with_metadata(metadata)
    path = directory / name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        described = batch.replace_schema_metadata(schema.metadata)
        writer.write_batch(described)

    return arrow_files.written(path, FileKind.DROPPED, table, ids.size)


def read(directory: Location, file: ShardFile) -> I64:
    """The ids, after a check that it is the file that was written."""
    with arrow_files.verified(directory, file) as reader:
        ids: I64 = reader.read_all().column("id").to_numpy()

    if ids.size != file.rows:
        raise CheckpointDamaged(
            f"{directory / file.name} has {ids.size} ids, the manifest says {file.rows}"
        )

    return ids


def data_time_s(directory: Location, file: ShardFile) -> int:
    """The data time that the table had; the rest of the file is not read."""
    with arrow_files.opened(directory, file) as reader:
        try:
            return int(reader.schema.metadata[_DATA_TIME])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointDamaged(
                f"{directory / file.name} does not say the data time of its table: {error!r}"
            ) from error
