"""Compile, or load from the cache, every kernel that a request needs: the first one must not wait for it."""

import numpy as np

from megalith.ps.table import EmbeddingTable
from megalith.wire.schema import Adagrad, RandomUniform, Segment, Sgd, TableConfig, Zeros


def warm_up() -> None:
    """Run each kernel once with the argument types of real requests, which arrive as read-only arrays."""
    keys = np.arange(2, dtype=np.int64)
    gradients = np.ones((2, 2), np.float32)
    keys.flags.writeable = gradients.flags.writeable = False
    for optimizer in (Sgd(), Adagrad()):
        for initializer in (Zeros(), RandomUniform()):
            table = EmbeddingTable(TableConfig("warm-up", (Segment(2, initializer, optimizer),)))
            table.apply_gradients(keys, gradients)
            table.lookup(keys)
            table.load(table.dump(table.keys()))
            table.dump(keys)
