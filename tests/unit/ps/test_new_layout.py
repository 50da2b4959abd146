"""A table that takes a new layout: the server goes on reporting, and no write is lost."""

import threading

import numpy as np
import pytest

from megalith.engine.table.conversion import converted
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.ps.store import contents
from megalith.ps.store.store import Store
from megalith.ps.store.writes import Sender, TableValues
from megalith.schema import Adagrad, Segment, Sgd, TableConfig, Zeros
from megalith.wire import routing

IDS = np.arange(1, 11)
EPOCH = 1


def config(optimizer):
    return TableConfig("t", (Segment(2, Zeros(), optimizer),))


@pytest.fixture
def store():
    """A server with a table out of a checkpoint, which no program has created yet."""
    store = Store(0)
    table = EmbeddingTable(config(Adagrad(0.5)))
    table.assign(IDS, np.ones((IDS.size, 2), np.float32))
    store.adopt(table=table)
    current = routing.Routing(EPOCH, ("a",), routing.even_owners(1), "run")
    store.route(current, is_initialized=True)
    return store


def test_while_rows_are_converted_the_server_reports_and_writes_wait(store, monkeypatch):
    may_end = threading.Event()
    has_begun = threading.Event()

    def slow(old, wanted):
        change = converted(old, wanted)
        has_begun.set()
        may_end.wait(30)
        return change

    monkeypatch.setattr(contents, "converted", slow)
    wanted = [config(Sgd(0.1))]
    creating = threading.Thread(target=store.create_tables, args=(EPOCH, wanted, True))
    twos = TableValues("t", IDS, np.full((IDS.size, 2), 2, np.float32))

    def assign():
        store.assign(EPOCH, Sender("client", 1), [twos], is_added=False)

    writing = threading.Thread(target=assign)
    reporting = threading.Thread(target=lambda: store.rows)
    creating.start()
    has_begun.wait(30)
    writing.start()
    reporting.start()
    try:
        reporting.join(10)
        assert not reporting.is_alive()
        assert writing.is_alive()
    finally:
        may_end.set()
        creating.join(30)
        writing.join(30)

    (table,) = store.tables()
    assert table.config == wanted[0]
    np.testing.assert_array_equal(table.lookup(IDS), twos.values)


def test_a_table_that_was_dropped_meanwhile_is_made_anew(store, monkeypatch):
    def dropped_meanwhile(old, wanted):
        assert store.drop_table("t") == IDS.size
        return converted(old, wanted)

    monkeypatch.setattr(contents, "converted", dropped_meanwhile)
    assert store.create_tables(EPOCH, [config(Sgd(0.1))], True) == {}
    (table,) = store.tables()
    assert len(table) == 0
