"""Giving the rows of a table another layout: other optimizers, or another width."""

from typing import NamedTuple

import numpy as np

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.table.row_layout import RowLayout
from megalith.schema import TableConfig


class Converted(NamedTuple):
    """A table of another layout, and how many rows of the old one kept their weights."""

    old: EmbeddingTable
    table: EmbeddingTable
    kept: int
    dropped: int


def converted(old: EmbeddingTable, config: TableConfig) -> Converted:
    """A table with the layout of `config`.

    With rows of the same width the weights stay, and the state of all optimizers begins anew. With
    another width there is nothing to keep. Nobody may write to the old table meanwhile.
    """
    table = EmbeddingTable(config)
    if RowLayout(config).dim != old.layout.dim:
        return Converted(old, table, 0, len(old))

    dim = old.layout.dim
    refused = 0
    offset = 0

    while True:
        chunk = old.dump(offset=offset, with_expired=True)
        if not chunk.ids.size:
            break

        rows = np.tile(table.layout.template, (chunk.ids.size, 1))
        rows[:, :dim] = chunk.rows[:, :dim]
        result = table.load(chunk.ids, rows, chunk.times, max_update_s=old.max_update_s)

        refused += result.refused
        offset = chunk.offset

    return Converted(old, table, len(table), refused)
