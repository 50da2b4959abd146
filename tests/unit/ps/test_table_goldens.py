"""Golden numbers of the reference's tables: reading and writing. Each test is named after the case it comes from."""

import threading

import numpy as np
import pytest

from megalith.ps.table import EmbeddingTable
from megalith.wire.schema import (
    Adagrad,
    PolynomialDecay,
    Segment,
    Sgd,
    TableConfig,
    Zeros,
)
from unit.ps.golden_tables import column, ids, sgd_table


def test_read_write_embedding_hash_table_single_thread() -> None:
    table = sgd_table()
    assert table.lookup(ids(5)) == 0
    table.assign_add(ids(-10), column(2.5))
    assert table.lookup(ids(-10)) == 2.5
    table.apply_gradients(ids(13), column(1), [0.01])
    np.testing.assert_allclose(table.lookup(ids(13)), [[-0.01]], rtol=1e-6)
    table.assign(ids(-10, 13, 100), column(1, 2, 3))
    np.testing.assert_array_equal(table.lookup(ids(5, -10, 13, 100)), column(0, 1, 2, 3))
    entries = table.lookup_entry(ids(7, -10))
    assert entries.times.tolist() == [-1, 0]
    np.testing.assert_array_equal(entries.values, column(0, 1))
    assert entries.state.shape == (2, 0)


def test_read_write_embedding_hash_table_multi_thread() -> None:
    table = sgd_table()
    writes = [
        call
        for i in range(100)
        for call in (
            lambda i=i: table.assign_add(ids(i), column(i)),
            lambda i=i: table.apply_gradients(ids(i), column(-200 * i), [0.01]),
        )
    ]
    threads = [threading.Thread(target=write) for write in writes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(
        table.lookup(np.arange(100)), 3 * np.arange(100.0).reshape(-1, 1), rtol=1e-6
    )


def test_read_write_embedding_hash_table_clear() -> None:
    table = sgd_table()
    table.assign(ids(1), column(2))
    table.clear()
    assert table.lookup(ids(1)) == 0
    assert len(table) == 0


def test_hash_table_ops_basic() -> None:
    table = sgd_table()
    table.assign_add(ids(0, 1), column(1, 1))
    np.testing.assert_array_equal(table.lookup(ids(0, 1, 2)), column(1, 1, 0))
    assert table.size == 2


def test_entry_accessor_from_config() -> None:
    table = EmbeddingTable(
        TableConfig("t", (Segment(1, Zeros(), Sgd()), Segment(2, Zeros(), Sgd())))
    )
    table.apply_gradients(ids(1), np.array([[1, 2, 3]], np.float32), [1, 2])
    np.testing.assert_array_equal(table.lookup(ids(1)), [[-1, -4, -6]])


def test_combine_optimizers_basic() -> None:
    segments = Segment(1, Zeros(), Adagrad(1.0, 1.0)), Segment(2, Zeros(), Adagrad(1.0, 2.0))
    table = EmbeddingTable(TableConfig("t", segments))
    grads = np.array([[1, 2, 3]], np.float32)
    table.apply_gradients(ids(1), grads, [1, 2])
    np.testing.assert_allclose(
        table.lookup(ids(1)), [[-0.70710677, -1.6329931, -1.8090681]], atol=1e-6
    )
    piece = table.dump()
    piece.rows[:, :3] = 0
    table.load(piece.keys, piece.rows, piece.times)
    table.apply_gradients(ids(1), grads, [1, 2])
    np.testing.assert_allclose(
        table.lookup(ids(1)), [[-0.57735026, -1.264911, -1.3416407]], atol=1e-6
    )


def test_entry_accessor_save_restore() -> None:
    def fresh() -> EmbeddingTable:
        return EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Adagrad(1.0, 0.1)),)))

    table, other = fresh(), fresh()
    table.apply_gradients(ids(1), column(1), [1])
    np.testing.assert_allclose(table.lookup(ids(1)), [[-0.95346254]], atol=1e-6)
    piece = table.dump()
    other.load(piece.keys, piece.rows, piece.times, table.layout.signature)
    other.apply_gradients(ids(1), column(1), [1])
    np.testing.assert_allclose(other.lookup(ids(1)), [[-1.643528]], atol=1e-6)


def test_hash_table_ops_gradients() -> None:
    table = sgd_table()
    table.apply_gradients(ids(0, 0, 1), column(-1, -1, -1), [0.1])
    np.testing.assert_allclose(table.lookup(ids(0, 1)), column(0.2, 0.1), rtol=1e-6)


def test_hash_table_ops_gradients_with_dedup() -> None:
    table = sgd_table(10)
    table.apply_gradients(ids(0, 1, 0, 1, 0), np.full((5, 10), -1, np.float32), [0.1], dedup=True)
    np.testing.assert_allclose(table.lookup(ids(0, 1)), np.repeat([[0.3], [0.2]], 10, 1), rtol=1e-6)


def test_hash_table_ops_gradients_with_different_ids() -> None:
    table = sgd_table()
    table.lookup(ids(0, 0, 1))
    table.apply_gradients(ids(1, 0, 1), column(-1, -1, -1), [0.1])
    np.testing.assert_allclose(table.lookup(ids(0, 1)), column(0.1, 0.2), rtol=1e-6)


def test_multi_type_hash_table_apply_gradients_without_lookup() -> None:
    table = sgd_table(2)
    table.apply_gradients(ids(2, 2), np.array([[1.1, 3.1], [2.2, 4.2]], np.float32), [1])
    np.testing.assert_allclose(table.lookup(ids(2)), [[-3.3, -7.3]], rtol=1e-6)


def test_dedup_and_no_dedup_differ_for_a_stateful_optimizer() -> None:
    def after(dedup: bool) -> float:
        table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Adagrad(1.0, 0.1)),)))
        table.apply_gradients(ids(3, 3), column(1, 1), [1], dedup=dedup)
        return float(table.lookup(ids(3))[0, 0])

    assert after(True) == pytest.approx(-2 / np.sqrt(4.1), rel=1e-6)
    assert after(False) == pytest.approx(-1 / np.sqrt(1.1) - 1 / np.sqrt(2.1), rel=1e-6)


def test_hash_table_ops_gradients_with_learning_rate_decay() -> None:
    schedule = PolynomialDecay(0.01, 10, 0.11)
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(), schedule=schedule),)))
    table.apply_gradients(ids(0, 0, 1), column(-1, -1, -1), step=1)
    np.testing.assert_allclose(table.lookup(ids(0, 1)), column(0.04, 0.02), rtol=1e-6)


def test_multi_type_hash_table_apply_gradients_with_learning_rate_decay() -> None:
    schedule = PolynomialDecay(0.1, 10, 1.1)
    one, two = (
        EmbeddingTable(TableConfig("t", (Segment(dim, Zeros(), Sgd(), schedule=schedule),)))
        for dim in (1, 2)
    )
    one.apply_gradients(ids(7), column(2))
    two.apply_gradients(ids(1, 2), np.array([[1, 3], [2, 4]], np.float32))
    np.testing.assert_allclose(one.lookup(ids(7)), [[-0.2]], rtol=1e-6)
    np.testing.assert_allclose(two.lookup(ids(1, 2)), [[-0.1, -0.3], [-0.2, -0.4]], rtol=1e-6)
