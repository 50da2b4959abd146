"""Golden numbers of the reference's tables, each test named after the case it comes from."""

import threading

import numpy as np
import pytest

from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.table import EmbeddingTable
from megalith.wire.schema import (
    Adagrad,
    AdmissionConfig,
    Constants,
    FilterKind,
    FixedR8,
    Fp32,
    OneBit,
    Ones,
    PolynomialDecay,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    Zeros,
)

DAY_S = 86400


def ids(*values: int) -> I64:
    return np.array(values, np.int64)


def column(*values: float) -> F32:
    return np.array(values, np.float32).reshape(-1, 1)


def sgd_table(dim: int = 1, **settings: object) -> EmbeddingTable:
    return EmbeddingTable(TableConfig("t", (Segment(dim, Zeros(), Sgd()),), **settings))  # type: ignore[arg-type]


def fid(slot: int, signature: int) -> int:
    return slot << 48 | signature


def saved_and_restored(table: EmbeddingTable) -> EmbeddingTable:
    """What a checkpoint keeps: dump without the expired rows, clear, load."""
    piece = table.dump(limit=1000)
    table.clear()
    table.load(piece.keys, piece.rows, piece.times, table.layout.signature)
    return table


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
    np.testing.assert_allclose(table.lookup(np.arange(100)), 3 * np.arange(100.0).reshape(-1, 1), rtol=1e-6)


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
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd()), Segment(2, Zeros(), Sgd()))))
    table.apply_gradients(ids(1), np.array([[1, 2, 3]], np.float32), [1, 2])
    np.testing.assert_array_equal(table.lookup(ids(1)), [[-1, -4, -6]])


def test_combine_optimizers_basic() -> None:
    segments = Segment(1, Zeros(), Adagrad(1.0, 1.0)), Segment(2, Zeros(), Adagrad(1.0, 2.0))
    table = EmbeddingTable(TableConfig("t", segments))
    grads = np.array([[1, 2, 3]], np.float32)
    table.apply_gradients(ids(1), grads, [1, 2])
    np.testing.assert_allclose(table.lookup(ids(1)), [[-0.70710677, -1.6329931, -1.8090681]], atol=1e-6)
    piece = table.dump()
    piece.rows[:, :3] = 0
    table.load(piece.keys, piece.rows, piece.times)
    table.apply_gradients(ids(1), grads, [1, 2])
    np.testing.assert_allclose(table.lookup(ids(1)), [[-0.57735026, -1.264911, -1.3416407]], atol=1e-6)


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


def test_embedding_hash_table_evict_one_time_evict() -> None:
    table = sgd_table(expire_days=14, expire_days_by_slot={0: 0, 1: 5, 2: 6})
    keys = ids(fid(1, 7), fid(2, 7), fid(3, 7))
    table.assign(keys, column(1, 2, 3), 1234)
    assert table.expire(1234 + 5 * DAY_S + 60) == 1
    np.testing.assert_array_equal(table.lookup(keys), column(0, 2, 3))


def test_embedding_hash_table_evict_while_rehash() -> None:
    table = sgd_table(expire_days_by_slot={slot: slot for slot in range(20)})
    keys = [np.array([fid(slot, i) for i in range(2000)], np.int64) for slot in range(20)]
    now_s = 1234 + int(5.5 * DAY_S)

    def insert() -> None:
        for part in range(0, 2000, 50):
            for slot in range(20):
                some = keys[slot][part : part + 50]
                table.assign(some, np.full((50, 1), slot + 1, np.float32), 1234 + part // 50)

    writer = threading.Thread(target=insert)
    writer.start()
    while writer.is_alive():
        table.expire(now_s)
    table.expire(now_s)
    for slot in range(20):
        np.testing.assert_array_equal(table.lookup(keys[slot]), np.full((2000, 1), slot + 1 if slot > 5 else 0))
    assert table.size == 14 * 2000


@pytest.mark.parametrize("kind", ["assign_add", "apply_gradients"])
def test_save_restore_with_feature_eviction(kind: str) -> None:
    table, newest = sgd_table(expire_days=1), 10**7
    for key, time_s in enumerate((newest - DAY_S - 1, newest - DAY_S + 1, newest), start=1):
        if kind == "assign_add":
            table.assign_add(ids(key), column(-key), time_s)
        else:
            table.apply_gradients(ids(key), column(key), [1], req_time_s=time_s)
    np.testing.assert_array_equal(saved_and_restored(table).lookup(ids(1, 2, 3)), column(0, -2, -3))


@pytest.mark.parametrize("time_s", [0, 10**7])
def test_save_restore_with_feature_eviction_same_req_time_drops_nothing(time_s: int) -> None:
    table = sgd_table(expire_days=1)
    table.assign_add(ids(1, 2, 3), column(1, 2, 3), time_s)
    np.testing.assert_array_equal(saved_and_restored(table).lookup(ids(1, 2, 3)), column(1, 2, 3))


def test_hash_table_ops_entry_ttl_zero() -> None:
    table = sgd_table(expire_days=0)
    table.assign_add(ids(1, 2), column(1, 2))
    assert saved_and_restored(table).size == 0


def test_hash_table_ops_entry_ttl_by_slots() -> None:
    table = sgd_table(expire_days_by_slot={1: 0, 2: 1})
    keys = ids(fid(1, 1), fid(2, 1))
    table.assign_add(keys, column(1, 2), 100)
    for _ in range(2):
        np.testing.assert_array_equal(saved_and_restored(table).lookup(keys), column(0, 2))


def test_eviction_boundary_is_inclusive() -> None:
    table = sgd_table(expire_days=1)
    table.assign(ids(1, 2), column(1, 1), 1000)
    assert table.expire(1000 + DAY_S - 1) == 0
    assert table.expire(1000 + DAY_S) == 2


def test_reader_util_get_slot_id() -> None:
    table = sgd_table(expire_days_by_slot={123: 0, 32767: 0})
    keys = ids(123 << 48, ((1 << 15) - 1) << 48, 122 << 48)
    table.assign(keys, column(1, 1, 1))
    assert table.expire() == 2
    assert table.contains(keys).tolist() == [False, False, True]


def test_hash_table_utils_iterate_table_and_apply() -> None:
    table = sgd_table()
    table.assign(np.arange(100), np.ones((100, 1), np.float32))
    seen: list[int] = []
    for shard in range(10):
        offset, count = 0, 2
        while count == 2:
            piece = table.dump(shard, 10, limit=2, offset=offset)
            offset, count = piece.offset, piece.keys.size
            seen += piece.keys.tolist()
    assert sorted(seen) == list(range(100))


def test_save_restore_embedding_hash_test_multithreaded() -> None:
    table, keys = sgd_table(), np.arange(26000, dtype=np.int64)
    table.assign(keys, keys.astype(np.float32).reshape(-1, 1), 5)
    pieces = [table.dump(shard, 10, limit=100_000) for shard in range(10)]
    assert sorted(np.concatenate([piece.keys for piece in pieces]).tolist()) == keys.tolist()
    restored = sgd_table()
    threads = [threading.Thread(target=restored.load, args=(piece.keys, piece.rows, piece.times)) for piece in pieces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(restored.lookup(keys), keys.reshape(-1, 1))
    assert restored.max_update_s == 5


def test_hash_table_ops_save_restore_with_hash_table_clear_logic() -> None:
    table = sgd_table()
    table.assign(ids(1), column(1))
    piece = table.dump()
    table.assign(ids(1, 2), column(5, 5))
    table.clear()
    table.load(piece.keys, piece.rows, piece.times)
    np.testing.assert_array_equal(table.lookup(ids(1, 2)), column(1, 0))


def test_save_restore_embedding_hash_test_save_with_stop_early_and_save_with_offset() -> None:
    """A walk may end after any slice, and one that goes on at its offset meets the rest."""
    table, keys = sgd_table(), np.arange(100)
    table.assign(keys, np.ones((100, 1), np.float32))
    early = table.dump(limit=30)
    assert early.keys.size == 30
    rest = table.dump(limit=100, offset=early.offset)
    assert sorted([*early.keys.tolist(), *rest.keys.tolist()]) == keys.tolist()


def test_hash_table_ops_gradients_with_learning_rate_decay() -> None:
    schedule = PolynomialDecay(0.01, 10, 0.11)
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(), schedule=schedule),)))
    table.apply_gradients(ids(0, 0, 1), column(-1, -1, -1), step=1)
    np.testing.assert_allclose(table.lookup(ids(0, 1)), column(0.04, 0.02), rtol=1e-6)


def test_multi_type_hash_table_apply_gradients_with_learning_rate_decay() -> None:
    schedule = PolynomialDecay(0.1, 10, 1.1)
    one, two = (EmbeddingTable(TableConfig("t", (Segment(dim, Zeros(), Sgd(), schedule=schedule),))) for dim in (1, 2))
    one.apply_gradients(ids(7), column(2))
    two.apply_gradients(ids(1, 2), np.array([[1, 3], [2, 4]], np.float32))
    np.testing.assert_allclose(one.lookup(ids(7)), [[-0.2]], rtol=1e-6)
    np.testing.assert_allclose(two.lookup(ids(1, 2)), [[-0.1, -0.3], [-0.2, -0.4]], rtol=1e-6)


def filtered_table(threshold: int) -> EmbeddingTable:
    return sgd_table(admission=AdmissionConfig(default_threshold=threshold, capacity=100))


def test_hash_table_ops_gradients_with_hash_filter() -> None:
    """Every occurrence counts, and containment is tested before any row of the call is made."""
    table = filtered_table(3)
    for zero, one in ((0, 0), (0.1, 0), (0.3, 0), (0.5, 0.1)):
        table.apply_gradients(ids(0, 0, 1), column(-1, -1, -1), [0.1])
        np.testing.assert_allclose(table.lookup(ids(0, 1)), column(zero, one), rtol=1e-6)
    assert table.stats().barred == 3 + 2 + 1


def test_hash_table_ops_hash_table_and_hash_filter_save_restore_hook_together() -> None:
    table, restored = filtered_table(2), filtered_table(2)
    assert table.admission is not None
    table.assign_add(ids(0), column(1))
    rows, counts = table.dump(), table.admission.state()
    for expected in (0, 1):
        table.assign_add(ids(0), column(1))
        assert table.lookup(ids(0)) == expected
    restored.load(rows.keys, rows.rows, rows.times)
    assert restored.admission is not None
    restored.admission.restore(counts)
    assert restored.lookup(ids(0)) == 0
    for expected in (0, 1):
        restored.assign_add(ids(0), column(1))
        assert restored.lookup(ids(0)) == expected


@pytest.mark.parametrize(
    ("is_equal", "repeats", "expected", "tolerance"),
    [(False, 1, 10000 / 7, 100), (False, 2, 20000 / 7, 100), (True, 1, 3481.64, 500), (True, 2, 5751.1, 1000)],
)
def test_probabilistic_filter_test_unequal_and_equal_probability_and_should_be_filtered(
    is_equal: bool, repeats: int, expected: float, tolerance: int
) -> None:
    rule = AdmissionConfig(kind=FilterKind.PROBABILISTIC, default_threshold=7, equal_probability=is_equal, seed=1)
    table, keys = sgd_table(admission=rule), np.repeat(np.arange(10000), repeats)
    table.apply_gradients(keys, np.ones((keys.size, 1), np.float32), [1], dedup=True)
    assert abs(table.size - expected) < tolerance
    held = table.size
    rows = np.arange(10000)[table.contains(np.arange(10000))]
    assert table.assign_add(rows, np.ones((held, 1), np.float32)).barred == 0, "ids with a row are not drawn for"


def test_an_id_that_was_admitted_and_dropped_comes_back_at_once() -> None:
    table = filtered_table(2)
    for _ in range(3):
        table.assign_add(ids(7), column(1))
    table.erase(ids(7))
    assert table.assign_add(ids(7), column(1)).created == 1


def test_lookups_restored_rows_and_reinitialize_ask_no_filter() -> None:
    table = filtered_table(2)
    for _ in range(5):
        assert table.lookup(ids(7)) == 0
    table.load(ids(8), column(5), ids(0))
    assert table.lookup(ids(8)) == 5
    assert table.reinitialize(ids(9)).tolist() == [0]
    assert table.assign(ids(7), column(1)).barred == 1
    assert (table.size, table.stats().barred) == (2, 1)


def test_a_time_is_set_not_raised_and_data_time_moves_even_if_every_id_is_barred() -> None:
    table = sgd_table()
    table.assign(ids(1), column(1), 2**31 + 5)  # the reference keeps data time in 31 bits
    table.apply_gradients(ids(1), column(1), [1], req_time_s=70)
    assert (table.max_update_s, table.lookup_entry(ids(1)).times.tolist()) == (2**31 + 5, [70])
    barring = filtered_table(3)
    barring.apply_gradients(ids(1), column(1), [1], req_time_s=90)
    assert (barring.max_update_s, barring.size) == (90, 0)


def test_initializer_combination_random_uniform_initializer_basic() -> None:
    segments = Segment(1, Constants(3), Sgd()), Segment(2, Constants(4), Sgd()), Segment(1, Ones(), Sgd())
    table = EmbeddingTable(TableConfig("t", segments))
    assert table.lookup(ids(5)).tolist() == [[0, 0, 0, 0]], "a lookup starts no row"
    table.assign_add(ids(5), np.array([[0, 1, 2, 0]], np.float32))
    assert table.lookup(ids(5)).tolist() == [[3, 5, 6, 1]]
    table.assign(ids(5), np.zeros((1, 4), np.float32))
    table.reinitialize(ids(5))
    assert table.lookup(ids(5)).tolist() == [[3, 4, 4, 1]]


def test_random_uniform_initializer_basic() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1000, RandomUniform(-1, 1), Sgd()),)))
    table.apply_gradients(ids(1), np.zeros((1, 1000), np.float32), [1])
    row = table.lookup(ids(1))
    assert 0.9 < row.max() < 1
    assert -1 <= row.min() < -0.9


def test_raw_and_fake_quant_and_combined_retriever_basic() -> None:
    segments = Segment(10, Zeros(), Sgd(), Fp32()), Segment(20, Zeros(), Sgd(), FixedR8(1.0))
    table = EmbeddingTable(TableConfig("t", segments))
    rows = np.random.default_rng(0).uniform(-0.99, 0.99, (100, 30)).astype(np.float32)
    table.assign(np.arange(100), rows)
    shown = table.lookup(np.arange(100))
    np.testing.assert_array_equal(shown[:, :10], rows[:, :10])
    assert 0 < np.abs(shown[:, 10:] - rows[:, 10:]).max() <= 1 / 128
    np.testing.assert_array_equal(shown[:, 10:] * 128, np.round(shown[:, 10:] * 128))
    np.testing.assert_array_equal(table.lookup_entry(np.arange(100)).values, rows)


def test_quantized_entry_accessor_fixed_range() -> None:
    for r in (1.0, 0.5):
        table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(), FixedR8(r)),)))
        table.assign(ids(1), column(1))
        assert abs(table.lookup(ids(1)) - r) <= r / 128
        table.apply_gradients(ids(1), column(1), [1])
        assert table.lookup(ids(1)) == 0


def test_hash_net_quantizer_forward_and_backward() -> None:
    """The gradient that reaches w = 2, read off a step at rate 1024, which keeps all of its digits."""
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(), OneBit(step_size=1000)),)))

    def passed(gradient: float, step: int) -> float:
        table.assign(ids(1), column(2))
        table.apply_gradients(ids(1), column(gradient), [1024], step=step)
        return float((2 - table.lookup_entry(ids(1)).values[0, 0]) / 1024)

    table.assign(ids(1, 2), column(1, 2))
    np.testing.assert_allclose(table.lookup(ids(1, 2)), column(0.07615941, 0.09640275), rtol=2e-7)
    for gradient, step, expected in (
        (1, 0, 0.00706508),
        (2, 999, 0.01413016),
        (100, 1000, 0.005442613),
        (200, 1001, 0.01088523),
    ):
        assert passed(gradient, step) == pytest.approx(expected, rel=4e-7)
    np.testing.assert_allclose(table.lookup(ids(2)), [[0.09998888]], rtol=2e-7)


def test_hash_net_retriever_basic() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(), OneBit(step_size=100)),)))
    table.assign(ids(1, 2), column(1, 1))
    table.apply_gradients(ids(1), column(1), [1024], step=100)
    passed = (1 - table.lookup_entry(ids(1)).values[0, 0]) / 1024
    assert passed == pytest.approx(0.35840667 * 0.1, rel=4e-7)
    np.testing.assert_allclose(table.lookup(ids(2)), [[0.1 * np.tanh(np.sqrt(1.5))]], rtol=2e-7)
