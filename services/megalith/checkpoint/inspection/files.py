"""Reading the files of a checkpoint for people: checked whole once, with progress."""

from collections.abc import Container, Iterator

import numpy as np
import pyarrow as pa

from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.files import tables as table_files
from megalith.checkpoint.files.tables import RowBatch
from megalith.checkpoint.inspection.progress import ProgressDisplay
from megalith.checkpoint.layout import arrow_files, integrity, manifest
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import Location
from megalith.errors import CheckpointDamaged
from megalith.kernels.dtypes import I64


def check(chain: Chain, progress: ProgressDisplay, tables: Container[str] | None = None) -> None:
    """CheckpointDamaged, with the file's name, unless all files are what was written.

    With `tables`, only the files of these are looked at.
    """
    wanted = []
    for directory, content in chain.folders:
        for file in content.files:
            if tables is None or file.table in tables:
                wanted.append((directory, file))

    total_bytes = sum(file.bytes for _, file in wanted)
    progress.begin(f"checking {chain.directory.name}", total_bytes)

    for directory, file in wanted:
        check_file(directory, file, progress)


def check_file(directory: Location, file: ShardFile, progress: ProgressDisplay) -> None:
    """CheckpointDamaged unless the file is what was written."""
    path = directory / file.name
    manifest.check_size(directory, file)

    try:
        with stored.open_file(path) as content:
            integrity.check(path, content, file, progress.add)
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read: {error.strerror or error}") from error


def open_rows(directory: Location, file: ShardFile) -> Iterator[RowBatch]:
    """The rows of a file that was checked before."""
    with arrow_files.opened(directory, file) as reader:
        for number in range(reader.num_record_batches):
            yield table_files.row_batch(reader.get_batch(number))


def ids_of(directory: Location, file: ShardFile) -> Iterator[I64]:
    """Only the ids of a table's file that was checked before; the rest of it is not read."""
    path = directory / file.name
    try:
        with stored.opened(path) as source:
            names = pa.ipc.open_file(source).schema.names
            column = names.index("id")
            options = pa.ipc.IpcReadOptions(included_fields=[column])
            reader = pa.ipc.open_file(source, options=options)

            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)

                ids: I64 = batch.column("id").to_numpy()
                yield np.ascontiguousarray(ids)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise CheckpointDamaged(f"{path} cannot be read as an Arrow file: {error}") from error
