"""Golden numbers of Monolith's tables: reading and writing.

Each test is named after the case it comes from.
"""

import threading

import numpy as np
import pytest

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.schema import (
    Adagrad,
    PolynomialDecay,
    Segment,
    Sgd,
    TableConfig,
    Zeros,
)
from support.golden_tables import column, ids, sgd_table


@pytest.mark.golden("ReadWriteEmbeddingHashTableTest.SingleThread")
def test_rows_are_added_to_trained_and_assigned_and_absent_ids_read_zero() -> None:
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


@pytest.mark.golden("ReadWriteEmbeddingHashTableTest.MultiThread")
def test_200_threads_that_add_and_train_lose_no_write() -> None:
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


@pytest.mark.golden("ReadWriteEmbeddingHashTableTest.Clear")
def test_a_cleared_table_reads_zero_and_holds_nothing() -> None:
    table = sgd_table()
    table.assign(ids(1), column(2))
    table.clear()
    assert table.lookup(ids(1)) == 0
    assert len(table) == 0


@pytest.mark.golden("HashTableOpsTest.test_basic")
def test_only_ids_that_were_added_have_rows() -> None:
    table = sgd_table()
    table.assign_add(ids(0, 1), column(1, 1))
    np.testing.assert_array_equal(table.lookup(ids(0, 1, 2)), column(1, 1, 0))
    assert table.size == 2


@pytest.mark.golden("EntryAccessorTest.FromConfig")
def test_each_segment_of_a_row_is_trained_at_its_own_rate() -> None:
    table = EmbeddingTable(
        TableConfig("t", (Segment(1, Zeros(), Sgd()), Segment(2, Zeros(), Sgd())))
    )
    table.apply_gradients(ids(1), np.array([[1, 2, 3]], np.float32), [1, 2])
    np.testing.assert_array_equal(table.lookup(ids(1)), [[-1, -4, -6]])


@pytest.mark.golden("CombineOptimizers.Basic")
def test_two_adagrad_segments_of_a_row_keep_their_own_accumulators() -> None:
    segments = Segment(1, Zeros(), Adagrad(1.0, 1.0)), Segment(2, Zeros(), Adagrad(1.0, 2.0))
    table = EmbeddingTable(TableConfig("t", segments))
    grads = np.array([[1, 2, 3]], np.float32)
    table.apply_gradients(ids(1), grads, [1, 2])
    np.testing.assert_allclose(
        table.lookup(ids(1)), [[-0.70710677, -1.6329931, -1.8090681]], atol=1e-6
    )
    piece = table.dump()
    piece.rows[:, :3] = 0
    table.load(piece.ids, piece.rows, piece.times)
    table.apply_gradients(ids(1), grads, [1, 2])
    np.testing.assert_allclose(
        table.lookup(ids(1)), [[-0.57735026, -1.264911, -1.3416407]], atol=1e-6
    )


@pytest.mark.golden("EntryAccessorTest.SaveRestore")
def test_a_dumped_adagrad_row_goes_on_in_another_table() -> None:
    def fresh() -> EmbeddingTable:
        return EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Adagrad(1.0, 0.1)),)))

    table, other = fresh(), fresh()
    table.apply_gradients(ids(1), column(1), [1])
    np.testing.assert_allclose(table.lookup(ids(1)), [[-0.95346254]], atol=1e-6)
    piece = table.dump()
    other.load(piece.ids, piece.rows, piece.times, table.layout.signature)
    other.apply_gradients(ids(1), column(1), [1])
    np.testing.assert_allclose(other.lookup(ids(1)), [[-1.643528]], atol=1e-6)


@pytest.mark.golden("HashTableOpsTest.test_gradients")
def test_an_id_is_trained_once_for_each_of_its_gradients() -> None:
    table = sgd_table()
    table.apply_gradients(ids(0, 0, 1), column(-1, -1, -1), [0.1])
    np.testing.assert_allclose(table.lookup(ids(0, 1)), column(0.2, 0.1), rtol=1e-6)


@pytest.mark.golden("HashTableOpsTest.test_gradients_with_dedup")
def test_dedup_sums_the_gradients_of_an_id() -> None:
    table = sgd_table(10)
    table.apply_gradients(ids(0, 1, 0, 1, 0), np.full((5, 10), -1, np.float32), [0.1], dedup=True)
    np.testing.assert_allclose(table.lookup(ids(0, 1)), np.repeat([[0.3], [0.2]], 10, 1), rtol=1e-6)


@pytest.mark.golden("HashTableOpsTest.test_gradients_with_different_ids")
def test_gradients_train_the_ids_they_name_not_those_looked_up() -> None:
    table = sgd_table()
    table.lookup(ids(0, 0, 1))
    table.apply_gradients(ids(1, 0, 1), column(-1, -1, -1), [0.1])
    np.testing.assert_allclose(table.lookup(ids(0, 1)), column(0.1, 0.2), rtol=1e-6)


@pytest.mark.golden("MultiTypeHashTableTest.test_apply_gradients_without_lookup")
def test_ids_that_nobody_looked_up_are_trained() -> None:
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


@pytest.mark.golden("HashTableOpsTest.test_gradients_with_learning_rate_decay")
def test_a_segment_s_schedule_gives_the_rate_of_the_step() -> None:
    schedule = PolynomialDecay(0.01, 10, 0.11)
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(), schedule=schedule),)))
    table.apply_gradients(ids(0, 0, 1), column(-1, -1, -1), step=1)
    np.testing.assert_allclose(table.lookup(ids(0, 1)), column(0.04, 0.02), rtol=1e-6)


@pytest.mark.golden("MultiTypeHashTableTest.test_apply_gradients_with_learning_rate_decay")
def test_a_schedule_starts_at_its_initial_rate_in_tables_of_any_width() -> None:
    schedule = PolynomialDecay(0.1, 10, 1.1)
    one, two = (
        EmbeddingTable(TableConfig("t", (Segment(dim, Zeros(), Sgd(), schedule=schedule),)))
        for dim in (1, 2)
    )
    one.apply_gradients(ids(7), column(2))
    two.apply_gradients(ids(1, 2), np.array([[1, 3], [2, 4]], np.float32))
    np.testing.assert_allclose(one.lookup(ids(7)), [[-0.2]], rtol=1e-6)
    np.testing.assert_allclose(two.lookup(ids(1, 2)), [[-0.1, -0.3], [-0.2, -0.4]], rtol=1e-6)
