import numpy as np
import pytest

from megalith.engine.table.conversion import converted
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.schema import Adagrad, Adam, Segment, Sgd, TableConfig
from support import at_size

ROWS = 300_000


def config(dim, optimizer):
    return TableConfig("t", (Segment(dim, optimizer=optimizer),))


@pytest.fixture
def old():
    table = EmbeddingTable(config(2, Adagrad(0.5, initial_accumulator_value=0.25)))
    ids = at_size.ids_in("random", ROWS)
    values = np.random.default_rng(1).normal(size=(ROWS, 2)).astype(np.float32)
    table.assign(ids, values, req_time_s=1_700_000_000)
    return table, ids, values


@pytest.mark.parametrize(
    "optimizer", [Sgd(1.0), Adam(0.1), Adagrad(0.5, initial_accumulator_value=1.0)]
)
def test_another_optimizer_keeps_all_weights_and_begins_as_on_new_rows(old, optimizer):
    table, ids, values = old
    change = converted(table, config(2, optimizer))
    assert (change.kept, change.dropped) == (ROWS, 0)
    np.testing.assert_array_equal(change.table.lookup(ids), values)
    assert change.table.max_update_s == table.max_update_s

    fresh = EmbeddingTable(config(2, optimizer))
    fresh.assign(ids[:1000], values[:1000], req_time_s=1_700_000_000)
    gradients = at_size.gradients_of(1000)
    for each in (change.table, fresh):
        each.apply_gradients(ids[:1000], gradients, [0.1], req_time_s=1_700_000_100)
    np.testing.assert_array_equal(change.table.lookup(ids[:1000]), fresh.lookup(ids[:1000]))


def test_another_width_keeps_nothing_and_says_how_many_rows_are_gone(old):
    table, _, _ = old
    change = converted(table, config(3, Adagrad(0.5)))
    assert (change.kept, change.dropped, len(change.table)) == (0, ROWS, 0)
    assert len(table) == ROWS
