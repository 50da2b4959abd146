"""How many rows of a ps's buckets are in tables that a restore leaves out."""

from collections.abc import Iterable

import numpy as np

from megalith.checkpoint.directory.increments import Chain
from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout import arrow_files
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.checkpoint.storage.location import Location
from megalith.kernels.dtypes import I64, Bools
from megalith.wire import routing


def count(chain: Chain, tables: Iterable[str], mine: Bools) -> int:
    """Rows of the buckets in `mine`, expired ones too."""
    return sum(_ids_of(chain, name, mine).size for name in tables)


def _ids_of(chain: Chain, table: str, mine: Bools) -> I64:
    """The ids that have a row after the last increment."""
    held = np.empty(0, np.int64)
    for directory, content in chain.folders:
        files = [file for file in content.files if file.table == table]

        for file in files:
            if file.kind is FileKind.TABLE:
                held = np.union1d(held, _read_ids(directory, file, mine))

        for file in files:
            if file.kind is FileKind.DROPPED:
                held = np.setdiff1d(held, _read_ids(directory, file, mine), assume_unique=True)

    return held


def _read_ids(directory: Location, file: ShardFile, mine: Bools) -> I64:
    if not file.rows or not (arrow_files.buckets_of(file) & mine).any():
        return np.empty(0, np.int64)

    parts = []
    with arrow_files.verified(directory, file) as reader:
        for number in range(reader.num_record_batches):
            ids = reader.get_batch(number).column("id").to_numpy()
            buckets = routing.buckets_of(ids)
            parts.append(ids[mine[buckets]])

    return np.concatenate(parts)
