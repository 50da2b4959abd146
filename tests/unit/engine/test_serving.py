import threading

import numpy as np
import pytest

from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.serving import load_for_serving
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.serving_table import ServingTable
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import (
    DuplicateIds,
    InvalidRequest,
    MalformedArray,
    NonFiniteValue,
    ReadOnlyTable,
    ShapeMismatch,
)
from megalith.ps.store.store import Store
from megalith.schema import (
    Adagrad,
    FixedR8,
    Fp16,
    Fp32,
    OneBit,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    Zeros,
)
from support.twins.table import SECRET

KEYS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 20_000)
VALUES = np.random.default_rng(1).uniform(-0.9, 0.9, (KEYS.size, 16)).astype(np.float32)


def serving(*compressors, dim=16, **settings):
    segments = tuple(Segment(dim, Zeros(), Sgd(), compressor) for compressor in compressors)
    return ServingTable(TableConfig("t", segments), **settings)


@pytest.mark.parametrize(
    ("compressor", "row_bytes", "tolerance"),
    [(Fp32(), 64, 0), (Fp16(), 32, 5e-4), (FixedR8(1.0), 16, 1 / 256 + 1e-7)],
)
def test_a_row_takes_the_bytes_of_its_compressor_and_reads_back_within_its_step(
    compressor, row_bytes, tolerance
):
    table = serving(compressor, secret=SECRET)
    assert table.upsert(KEYS, VALUES) == 0
    assert (table.row_bytes, len(table)) == (row_bytes, KEYS.size)
    whole = serving(Fp32(), secret=SECRET)
    whole.upsert(KEYS, VALUES)
    assert whole.nbytes - table.nbytes == (64 - row_bytes) * KEYS.size  # the index costs the same
    assert table.nbytes <= (row_bytes + 40) * KEYS.size
    assert np.abs(table.lookup(KEYS) - VALUES).max() <= tolerance


def test_one_bit_rows_read_plus_or_minus_the_amplitude_and_absent_ones_zero():
    table = serving(OneBit(amplitude=0.5))
    table.upsert(KEYS[1:], VALUES[1:])
    assert table.row_bytes == 16
    np.testing.assert_array_equal(table.lookup(KEYS[1:]), np.where(VALUES[1:] > 0, 0.5, -0.5))
    np.testing.assert_array_equal(table.lookup(KEYS[:1]), np.zeros((1, 16)))
    assert table.contains(KEYS[:2]).tolist() == [False, True]


def test_segments_share_a_row_that_is_filled_up_to_whole_words():
    segments = (
        Segment(1, Zeros(), Sgd(), Fp32()),
        Segment(3, Zeros(), Sgd(), Fp16()),
        Segment(3, compressor=FixedR8()),
    )
    table = ServingTable(TableConfig("t", segments))
    assert table.row_bytes == 16  # 4 + 6 + 3, and 3 more
    table.upsert(np.array([5]), np.array([[0.1, 1, 2, 3, 0.5, -0.25, 0]], np.float32))
    np.testing.assert_array_equal(
        table.lookup(np.array([5, 6])),
        np.array([[0.1, 1, 2, 3, 0.5, -0.25, 0], [0] * 7], np.float32),
    )


@pytest.mark.golden("ServingEntryAccessorTest.Update")
def test_a_serving_table_is_exact_in_fp32_and_close_in_fp16():
    for compressor, tolerance in ((Fp32(), 0), (Fp16(), 1e-4)):
        table = serving(compressor, dim=3)
        table.upsert(np.array([1]), np.array([[0.1, 0.2, 0.3]], np.float32))
        np.testing.assert_allclose(
            table.lookup(np.array([1])), np.float32([[0.1, 0.2, 0.3]]), rtol=0, atol=tolerance
        )


@pytest.mark.golden(
    "Fp32FloatCompressorTest.Basic",
    "Fp16FloatCompressorTest.Basic",
    "FixedR8FloatCompressorTest.Basic",
    "OneBitFloatCompressorTest.Basic",
    "CombinedFloatCompressorTest.Basic",
)
@pytest.mark.parametrize(
    ("compressors", "row", "expected"),
    [
        pytest.param(
            [Fp32()], [0.1, 0.2, 10000], [0.1, 0.2, 10000], id="fp32_float_compressor_test_basic"
        ),
        pytest.param(
            [Fp16()],
            [0.1, 0.2, 10000],
            np.uint16([11878, 12902, 28898]).view(np.float16),
            id="fp16_float_compressor_test",
        ),
        pytest.param(
            [FixedR8(5.0)],
            [100, 0, 3.5],
            [4.9609375, 0, 3.515625],
            id="fixed_r8_float_compressor_test_basic",
        ),
        pytest.param(
            [OneBit(amplitude=1.0)],
            [100, 0.1, 1e-5, 0, -1e-5, -0.1, -100],
            [1, 1, 1, -1, -1, -1, -1],
            id="one_bit_float_compressor_test_basic",
        ),
        pytest.param([Fp16(), Fp16()], [1, 2], [1, 2], id="combined_float_compressor_test_basic"),
    ],
)
def test_a_serving_table_shows_what_its_compressors_store(compressors, row, expected):
    table = serving(*compressors, dim=len(row) // len(compressors))
    table.upsert(np.array([1]), np.float32([row]))
    np.testing.assert_array_equal(table.lookup(np.array([1])), np.float32([expected]))


@pytest.mark.golden("EmbeddingHashTableSkipZeroEmbeddingTest.AssignSkipZeroEmbedding")
def test_a_row_that_becomes_zero_leaves_the_serving_table():
    table = serving(Fp16(), dim=1, skip_zero_embedding=True)
    keys = np.arange(3000)
    table.upsert(keys, np.ones((3000, 1), np.float32))
    table.upsert(keys, (keys % 2).astype(np.float32)[:, None])
    np.testing.assert_array_equal(table.contains(keys), keys % 2 == 1)
    np.testing.assert_array_equal(table.lookup(keys)[:, 0], keys % 2)
    assert len(table) == 1500


def test_adding_reads_rounds_and_drops_rows_that_become_zero():
    table = serving(FixedR8(1.0), dim=1, skip_zero_embedding=True)
    keys, step = np.arange(3), np.float32(1 / 128)
    table.upsert(keys[:2], np.float32([[10.4], [5]]) * step, np.array([7, 7]))
    assert table.assign_add(keys, np.float32([[10.4], [-5], [3]]) * step) == 0
    np.testing.assert_array_equal(table.lookup(keys), np.float32([[20], [0], [3]]) * step)
    assert table.contains(keys).tolist() == [True, False, True]


def test_a_full_serving_table_says_how_many_rows_it_refused():
    config = TableConfig("t", (Segment(16, Zeros(), Sgd(), Fp16()),), memory_budget_bytes=600_000)
    table = ServingTable(config)
    refused = table.upsert(KEYS, VALUES)
    assert 0 < refused == KEYS.size - len(table)
    assert table.upsert(KEYS, VALUES) == refused
    assert table.nbytes <= 600_000


def test_threads_that_add_to_the_same_rows_lose_nothing():
    table, keys = serving(Fp32(), dim=1), np.arange(500)

    def add():
        for _ in range(40):
            table.assign_add(keys, np.ones((500, 1), np.float32))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(table.lookup(keys), np.full((500, 1), 160))


def saved(tmp_path, table):
    store = Store(0)
    store.adopt(table=table)
    files = save_shard(store, tmp_path, "s", 0, 1).files
    manifest.write(tmp_path, Manifest(step=1, num_ps=1, saved_at_s=1.0, files=tuple(files)))


@pytest.mark.golden("EmbeddingHashTableSkipZeroEmbeddingTest.RestoreSkipZeroEmbedding")
@pytest.mark.parametrize("skips", [False, True])
def test_rows_of_zeros_are_not_loaded_for_serving_if_asked(tmp_path, skips):
    trained = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Adagrad(), Fp16()),)))
    keys = np.arange(3000)
    trained.assign(keys, (keys % 2).astype(np.float32)[:, None], 77)
    saved(tmp_path, trained)
    table = load_for_serving(tmp_path, skip_zero_embedding=skips).tables["t"]
    np.testing.assert_array_equal(table.contains(keys), (keys % 2 == 1) | (not skips))
    np.testing.assert_array_equal(table.lookup(keys)[:, 0], keys % 2)


def test_rows_that_cannot_be_served_are_counted_and_said_and_all_others_are_served(
    tmp_path, caplog
):
    config = TableConfig("t", (Segment(1, Zeros(), Sgd(1.0), Fp32()),), expire_days=1)
    trained = EmbeddingTable(config)
    keys = np.arange(5)
    times = np.full(5, 1_000_000)
    times[4] = 1
    values = np.array([[1], [np.nan], [3], [np.inf], [np.nan]], np.float32)
    trained.load(keys, values, times)  # as early versions saved them
    saved(tmp_path, trained)
    served = load_for_serving(tmp_path)
    assert served.tables["t"].contains(keys).tolist() == [True, False, True, False, False]
    np.testing.assert_array_equal(served.tables["t"].lookup(keys)[:, 0], [1, 0, 3, 0, 0])
    assert served.not_finite == {"t": 2}
    assert served.expired == {"t": 1}
    assert served.refused == {"t": 0}
    assert "rows are not served: table=t not_finite=2 refused=0" in caplog.text


def test_rows_that_a_budget_has_no_room_for_are_counted_and_said(tmp_path, caplog):
    budget = 1 << 20
    segments = (Segment(16, Zeros(), Sgd(1.0), Fp32()),)
    trained = EmbeddingTable(TableConfig("t", segments))
    keys = np.arange(100_000)
    trained.assign(keys, np.ones((keys.size, 16), np.float32))
    trained.reconfigure(TableConfig("t", segments, memory_budget_bytes=budget))
    saved(tmp_path, trained)
    served = load_for_serving(tmp_path)
    table = served.tables["t"]
    assert table.nbytes <= budget
    assert 0 < len(table) < keys.size
    assert served.refused == {"t": keys.size - len(table)}
    assert f"table=t not_finite=0 refused={keys.size - len(table)}" in caplog.text


def test_a_checkpoint_serves_what_lookups_of_the_trained_table_showed(tmp_path):
    segments = (
        Segment(1, Zeros(), Sgd(1.0), Fp32()),
        Segment(15, RandomUniform(), Adagrad(0.1), FixedR8(0.5)),
    )
    trained = EmbeddingTable(TableConfig("t", segments, expire_days=1))
    trained.apply_gradients(KEYS, VALUES, req_time_s=1000)
    saved(tmp_path, trained)
    table = load_for_serving(tmp_path).tables["t"]
    np.testing.assert_array_equal(table.lookup(KEYS), trained.lookup(KEYS))
    assert table.row_bytes == 20 < 4 * trained.layout.width
    assert table.expire(1000 + 86399) == 0
    assert table.expire(1000 + 86400) == KEYS.size == table.expire() + KEYS.size


def test_rows_come_and_go_and_their_memory_is_used_again():
    table = serving(Fp16())
    table.upsert(KEYS, VALUES)
    full = table.nbytes
    for _ in range(3):
        assert table.erase(KEYS[:15_000]) == 15_000
        assert table.erase(KEYS[:15_000]) == 0
        np.testing.assert_array_equal(table.contains(KEYS), np.arange(KEYS.size) >= 15_000)
        np.testing.assert_array_equal(
            table.lookup(KEYS[15_000:]), VALUES[15_000:].astype(np.float16)
        )
        table.upsert(KEYS[:15_000], VALUES[:15_000])
    assert table.nbytes <= full + 4 * KEYS.size
    table.clear()
    assert len(table) == 0


def test_lookups_never_see_half_a_row_while_others_write_and_erase():
    table, done, errors = serving(Fp16()), threading.Event(), []

    def read():
        while not done.is_set():
            rows = table.lookup(KEYS)
            if not (rows == rows[:, :1]).all():
                errors.append(rows)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for value in range(1, 12):
        table.upsert(KEYS, np.full((KEYS.size, 16), value, np.float32))
        table.erase(KEYS[::3].copy())
    done.set()
    for reader in readers:
        reader.join()
    assert not errors


@pytest.mark.parametrize("call", ["apply_gradients", "lookup_entry", "dump"])
def test_what_only_training_tables_do_is_refused(call):
    table = serving(Fp16())
    with pytest.raises(ReadOnlyTable, match="table t is for serving: it"):
        getattr(table, call)(KEYS, VALUES)


@pytest.mark.parametrize(
    ("error", "keys", "values", "times"),
    [
        (MalformedArray, KEYS[:2].astype(np.int32), VALUES[:2], None),
        (ShapeMismatch, KEYS[:2], VALUES[:2, 1:].copy(), None),
        (MalformedArray, KEYS[:2], VALUES[:2].astype(np.float64), None),
        (NonFiniteValue, KEYS[:2], np.full((2, 16), np.nan, np.float32), None),
        (DuplicateIds, KEYS[[0, 0]], VALUES[:2], None),
        (ShapeMismatch, KEYS[:2], VALUES[:2], np.zeros(1, np.int64)),
        (InvalidRequest, KEYS[:2], VALUES[:2], np.array([0, -1])),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(error, keys, values, times):
    table = serving(Fp16(), skip_zero_embedding=True)
    for write in (table.upsert, table.assign_add):
        with pytest.raises(error):
            write(keys, values, times)
    assert len(table) == 0
