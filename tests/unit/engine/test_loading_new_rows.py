"""`EmbeddingTable.load_new`: the quick way of a restore does what `load` does, or nothing."""

import threading
from typing import Any

import numpy as np
import pytest

from megalith.engine.kernels.layout import UNLIMITED
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import InvalidRequest, MalformedArray, ShapeMismatch, TableConflict
from megalith.kernels.dtypes import F32, I64
from megalith.schema import Adagrad, RandomUniform, Segment, TableConfig

DAY_S = 86400
ROWS = 300_000
BLOCK = 8192


def make(**settings: Any) -> EmbeddingTable:
    segments = (Segment(3, RandomUniform(), Adagrad(0.1)), Segment(2))
    return EmbeddingTable(TableConfig("t", segments, **settings))


def rows_of(ids: I64, width: int) -> F32:
    """Rows that say whose they are."""
    low = (ids % 65_521).astype(np.float32)
    return np.ascontiguousarray(low[:, None] + np.arange(width, dtype=np.float32) / 16)


def load_new(table: EmbeddingTable, ids: I64, rows: F32, times: I64, **settings: Any) -> Any:
    dim = table.layout.dim
    embeddings = np.ascontiguousarray(rows[:, :dim])
    states = np.ascontiguousarray(rows[:, dim:])
    newest_s = int(times.max(initial=1))
    return table.load_new(
        ids, embeddings, states, times, table.layout.signature, newest_s, **settings
    )


def contents(table: EmbeddingTable) -> tuple[I64, F32, I64]:
    chunk = table.dump(limit=max(1, len(table)), with_expired=True)
    order = np.argsort(chunk.ids)
    return chunk.ids[order], chunk.rows[order], chunk.times[order]


def assert_equal(one: EmbeddingTable, other: EmbeddingTable) -> None:
    for mine, its in zip(contents(one), contents(other), strict=True):
        np.testing.assert_array_equal(mine, its)


def in_order_of_codes() -> I64:
    """Ids as a dump gives them, and so as a file of one bucket may have them."""
    table = make()
    ids = np.random.default_rng(3).integers(-(2**62), 2**62, ROWS)
    width = table.layout.width
    table.load(ids, np.zeros((ROWS, width), np.float32), np.ones(ROWS, np.int64))
    return table.dump(limit=ROWS).ids


ORDERS = {
    "random": lambda: np.random.default_rng(1).integers(-(2**63), 2**63 - 1, ROWS),
    "sorted": lambda: np.arange(ROWS) - 1000,
    "far apart": lambda: np.arange(ROWS) << 40,
    "codes of another table": in_order_of_codes,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_expected", [True, False], ids=["expected", "unexpected"])
def test_every_row_is_there(order: str, is_expected: bool) -> None:
    ids = ORDERS[order]()
    table = make()
    if is_expected:
        table.expect(ids.size)

    rows = rows_of(ids, table.layout.width)
    times = np.arange(ids.size) % 1000 + 1
    for begin in range(0, ids.size, BLOCK):
        part = slice(begin, begin + BLOCK)
        result = load_new(table, ids[part], rows[part], times[part])
        assert result.created == ids[part].size

    dim = table.layout.dim
    found = table.lookup_entry(ids)
    np.testing.assert_array_equal(found.values, rows[:, :dim])
    np.testing.assert_array_equal(found.state, rows[:, dim:])
    np.testing.assert_array_equal(found.times, times)
    assert len(table) == ids.size


def test_rows_in_the_order_of_the_own_codes() -> None:
    """A file of a table with the same secret: all ids of a block go to one partition."""
    ids = np.random.default_rng(5).integers(-(2**62), 2**62, ROWS)
    table = make()
    rows = rows_of(ids, table.layout.width)
    times = np.ones(ids.size, np.int64)
    table.load(ids, rows, times)
    chunk = table.dump(limit=ROWS)
    table.clear()

    for begin in range(0, ROWS, BLOCK):
        part = slice(begin, begin + BLOCK)
        load_new(table, chunk.ids[part], chunk.rows[part], chunk.times[part])

    found = table.lookup_entry(ids)
    np.testing.assert_array_equal(found.values, rows[:, : table.layout.dim])
    assert len(table) == ROWS


def test_ids_that_have_a_row_keep_it_and_are_counted() -> None:
    table, other = make(), make()
    width = table.layout.width
    held = np.arange(0, 5000, 3)
    for each in (table, other):
        each.load(held, rows_of(held, width), np.full(held.size, 7))

    ids = np.arange(5000)
    result = load_new(table, ids, rows_of(ids, width) + 1, np.full(5000, 9))
    is_new = ids % 3 != 0
    other.load(ids[is_new], rows_of(ids[is_new], width) + 1, np.full(is_new.sum(), 9))

    assert (result.created, result.replaced, result.refused) == (is_new.sum(), held.size, 0)
    assert_equal(table, other)
    assert table.stats().created == 5000


def test_an_id_that_comes_twice_is_made_once() -> None:
    table = make()
    ids = np.array([5, 6, 5, 5, -1, 6])
    rows = rows_of(np.arange(6), table.layout.width)
    result = load_new(table, ids, rows, np.arange(6) + 1)

    assert (result.created, result.replaced) == (3, 3)
    found = table.lookup_entry(np.array([5, 6, -1]))
    np.testing.assert_array_equal(found.values, rows[[0, 1, 4], : table.layout.dim])
    assert len(table) == 3


def test_rows_of_refused_ids_are_used_again() -> None:
    table = make()
    width = table.layout.width
    ids = np.arange(1000)
    load_new(table, ids, rows_of(ids, width), np.ones(1000, np.int64))
    load_new(table, ids, rows_of(ids, width), np.ones(1000, np.int64))

    others = ids + 1000
    load_new(table, others, rows_of(others, width), np.ones(1000, np.int64))
    assert table._rows.num_taken == 2000


def test_without_rows_for_all_of_them_nothing_is_done() -> None:
    table = make()
    table._rows.limit(100, UNLIMITED)
    ids = np.arange(101)
    rows = rows_of(ids, table.layout.width)
    times = np.ones(101, np.int64)
    assert load_new(table, ids, rows, times) is None
    assert len(table) == 0
    assert load_new(table, ids[:100], rows[:100], times[:100]).created == 100


def test_ids_without_room_in_the_index_are_refused_and_counted() -> None:
    table = make()
    table._rows.limit(ROWS, table._index.nbytes // 16)
    ids = np.random.default_rng(2).integers(0, 2**62, 50_000)
    rows = rows_of(ids, table.layout.width)
    result = load_new(table, ids, rows, np.ones(ids.size, np.int64))

    assert result.refused > 10_000
    assert result.created + result.refused == ids.size
    assert len(table) == result.created == np.count_nonzero(table.contains(ids))
    assert table.stats().refused == result.refused

    is_held = table.contains(ids)
    found = table.lookup_entry(ids[is_held])
    np.testing.assert_array_equal(found.values, rows[is_held, : table.layout.dim])


def test_rows_that_may_be_expired_are_left_to_the_other_way() -> None:
    table = make(expire_days=1)
    ids = np.arange(2)
    rows = rows_of(ids, table.layout.width)
    for times in ([100, 100 + DAY_S], [0, 100 + DAY_S]):
        assert load_new(table, ids, rows, np.array(times), drop_expired=True) is None

    assert len(table) == 0
    assert table.max_update_s == 0
    kept = load_new(table, ids, rows, np.array([101, 100 + DAY_S]), drop_expired=True)
    assert kept.created == 2


def test_a_row_without_a_time_gets_the_data_time() -> None:
    table = make()
    ids = np.arange(2)
    load_new(table, ids, rows_of(ids, table.layout.width), np.array([0, 500]))
    assert table.lookup_entry(ids).times.tolist() == [500, 500]


def test_a_table_with_a_memory_budget_is_left_to_the_other_way() -> None:
    table = make(memory_budget_bytes=2_000_000)
    ids = np.arange(2)
    assert load_new(table, ids, rows_of(ids, table.layout.width), ids + 1) is None


def test_no_rows() -> None:
    table = make()
    none = np.empty(0, np.int64)
    result = load_new(table, none, rows_of(none, table.layout.width), none)
    assert (result.created, result.replaced, result.refused) == (0, 0, 0)


def test_what_does_not_fit_is_an_error_and_nothing_is_done() -> None:
    table = make()
    ids = np.arange(3)
    width = table.layout.width
    rows = rows_of(ids, width)
    times = ids + 1
    dim = table.layout.dim
    embeddings = np.ascontiguousarray(rows[:, :dim])
    states = np.ascontiguousarray(rows[:, dim:])
    own = table.layout.signature

    with pytest.raises(TableConflict, match="cannot load rows other"):
        table.load_new(ids, embeddings, states, times, "other", 9)
    with pytest.raises(ShapeMismatch, match="embeddings have shape"):
        table.load_new(ids, embeddings[:2], states, times, own, 9)
    narrow = np.ascontiguousarray(states[:, 1:])
    with pytest.raises(ShapeMismatch, match="states have shape"):
        table.load_new(ids, embeddings, narrow, times, own, 9)
    with pytest.raises(ShapeMismatch, match="2 times for 3 rows"):
        table.load_new(ids, embeddings, states, times[:2], own, 9)
    with pytest.raises(MalformedArray, match="embeddings are float64"):
        table.load_new(ids, embeddings.astype(np.float64), states, times, own, 9)
    with pytest.raises(InvalidRequest, match="time -1"):
        table.load_new(ids, embeddings, states, times - 2, own, 9)

    assert len(table) == 0
    assert table.max_update_s == 0


def test_threads_that_load_the_same_blocks_at_once() -> None:
    """Four threads, each all blocks in an order of its own, while others read: once each."""
    table = make()
    table.expect(ROWS)
    ids = np.random.default_rng(7).permutation(ROWS)
    rows = rows_of(ids, table.layout.width)
    times = np.ones(ROWS, np.int64)
    dim = table.layout.dim
    created = []
    torn = []
    is_done = threading.Event()

    def load_all(seed: int) -> None:
        blocks = np.random.default_rng(seed).permutation(range(0, ROWS, BLOCK))
        for begin in blocks.tolist():
            part = slice(begin, begin + BLOCK)
            created.append(load_new(table, ids[part], rows[part], times[part]).created)

    def read() -> None:
        while not is_done.is_set():
            entries = table.lookup_entry(ids[:BLOCK])
            is_there = entries.times >= 0
            expected = rows[:BLOCK][is_there]
            if not np.array_equal(entries.values[is_there], expected[:, :dim]):
                torn.append("values")
            if not np.array_equal(entries.state[is_there], expected[:, dim:]):
                torn.append("state")

    reader = threading.Thread(target=read)
    reader.start()
    loaders = [threading.Thread(target=load_all, args=(seed,)) for seed in range(4)]
    for thread in loaders:
        thread.start()
    for thread in loaders:
        thread.join()
    is_done.set()
    reader.join()

    assert not torn
    assert sum(created) == len(table) == table.stats().created == ROWS
    assert table._rows.num_taken - int(table._rows.arrays.pool[2]) == ROWS
    np.testing.assert_array_equal(table.lookup(ids), rows[:, :dim])
