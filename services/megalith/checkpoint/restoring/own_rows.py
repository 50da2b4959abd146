"""The rows of a file that a ps is to have, as its tables take them."""

from typing import NamedTuple

import numpy as np

from megalith.checkpoint.files.tables import RowBatch
from megalith.checkpoint.kernels import joining
from megalith.engine.table.checks import frozen
from megalith.kernels.dtypes import F32, I64, Bools


class OwnRows(NamedTuple):
    """Embedding and optimizer state side by side."""

    ids: I64
    rows: F32
    times: I64


def joined(batch: RowBatch, mine: Bools) -> OwnRows:
    """The rows of the buckets in `mine`."""
    count, dim = batch.embeddings.shape
    width = dim + batch.states.shape[1]
    embeddings = batch.embeddings.reshape(-1)
    states = batch.states.reshape(-1)

    ids = np.empty(count, np.int64)
    rows = np.empty((count, width), np.float32)
    times = np.empty(count, np.int64)
    found = joining.join(
        frozen(batch.ids),
        frozen(embeddings),
        frozen(states),
        batch.times,
        mine,
        ids,
        rows.reshape(-1),
        times,
    )
    return OwnRows(ids[:found], rows[:found], times[:found])
