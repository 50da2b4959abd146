"""A target is sent pieces that fit into memory, however wide the rows are."""

import numpy as np
import pytest

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.ps.syncing.target_cursor import TargetCursor
from megalith.schema import Adagrad, Segment, TableConfig, Zeros


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("num_tables", [1, 4])
def test_pieces_of_wide_rows_take_few_megabytes(is_full, num_tables):
    tables = []
    for number in range(num_tables):
        segment = Segment(2048, Zeros(), Adagrad(0.1))
        tables.append(EmbeddingTable(TableConfig(f"t{number}", (segment,))))

    cursor = TargetCursor("a", 0, 0)
    if not is_full:
        list(cursor.deltas(tables))
        cursor.acknowledge(tables)

    ids = np.arange(1500)
    for table in tables:
        table.assign(ids, np.ones((ids.size, 2048), np.float32))
        table.changes.seal()

    pieces = list(cursor.deltas(tables))
    assert max(sum(part.values.nbytes for part in piece) for piece in pieces) <= 4 << 20
    for number in range(num_tables):
        sent = np.concatenate([piece[number].ids for piece in pieces])
        np.testing.assert_array_equal(np.sort(sent), ids)
