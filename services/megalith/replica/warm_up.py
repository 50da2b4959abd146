"""Compiling the kernels of a replica before it follows anybody.

Otherwise the first version waits for them, and a replica that counts as ready is stale.
"""

import numpy as np

from megalith.engine.serving_table import ServingTable
from megalith.schema import Segment, TableConfig


def warm_up() -> None:
    """Store, look up and drop a row; some seconds on a machine that has not compiled it yet."""
    segment = Segment(1)
    config = TableConfig("warm-up", (segment,))
    table = ServingTable(config)
    ids = np.zeros(1, np.int64)
    row = np.zeros((1, table.stored_bytes), np.uint8)
    table.upsert_compressed(ids, row, ids)
    table.lookup(ids)
    for some in table.ids():
        table.erase(some)
