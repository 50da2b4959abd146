"""Golden numbers of Monolith's tables: who gets a row, how it starts and what of it is shown."""

import numpy as np
import pytest

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.schema import (
    AdmissionConfig,
    Constants,
    FilterKind,
    FixedR8,
    Fp32,
    OneBit,
    Ones,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    Zeros,
)
from support.golden_tables import column, ids, sgd_table


def filtered_table(threshold: int) -> EmbeddingTable:
    return sgd_table(admission=AdmissionConfig(default_threshold=threshold, capacity=100))


@pytest.mark.golden("HashTableOpsTest.test_gradients_with_hash_filter")
def test_a_table_trains_an_id_once_it_was_seen_more_often_than_the_threshold() -> None:
    """Every occurrence counts, and containment is tested before any row of the call is made."""
    table = filtered_table(3)
    for zero, one in ((0, 0), (0.1, 0), (0.3, 0), (0.5, 0.1)):
        table.apply_gradients(ids(0, 0, 1), column(-1, -1, -1), [0.1])
        np.testing.assert_allclose(table.lookup(ids(0, 1)), column(zero, one), rtol=1e-6)
    assert table.stats().barred == 3 + 2 + 1


@pytest.mark.golden("HashTableOpsTest.test_hash_table_and_hash_filter_save_restore_hook_together")
def test_a_restored_table_goes_on_with_the_counts_of_its_filter() -> None:
    table, restored = filtered_table(2), filtered_table(2)
    assert table.admission is not None
    table.assign_add(ids(0), column(1))
    rows, counts = table.dump(), table.admission.state()
    for expected in (0, 1):
        table.assign_add(ids(0), column(1))
        assert table.lookup(ids(0)) == expected
    restored.load(rows.ids, rows.rows, rows.times)
    assert restored.admission is not None
    restored.admission.restore(counts)
    assert restored.lookup(ids(0)) == 0
    for expected in (0, 1):
        restored.assign_add(ids(0), column(1))
        assert restored.lookup(ids(0)) == expected


@pytest.mark.golden(
    "ProbabilisticFilterTest.UnequalProbability",
    "ProbabilisticFilterTest.EqualProbability",
    "ProbabilisticFilterTest.ShouldBeFiltered",
)
@pytest.mark.parametrize(
    ("is_equal", "repeats", "expected", "tolerance"),
    [
        (False, 1, 10000 / 7, 100),
        (False, 2, 20000 / 7, 100),
        (True, 1, 3481.64, 500),
        (True, 2, 5751.1, 1000),
    ],
)
def test_a_table_makes_rows_with_the_probability_of_its_filter(
    is_equal: bool, repeats: int, expected: float, tolerance: int
) -> None:
    rule = AdmissionConfig(
        kind=FilterKind.PROBABILISTIC, default_threshold=7, equal_probability=is_equal, seed=1
    )
    table, keys = sgd_table(admission=rule), np.repeat(np.arange(10000), repeats)
    table.apply_gradients(keys, np.ones((keys.size, 1), np.float32), [1], dedup=True)
    assert abs(table.size - expected) < tolerance
    held = table.size
    rows = np.arange(10000)[table.contains(np.arange(10000))]
    assert table.assign_add(rows, np.ones((held, 1), np.float32)).barred == 0, (
        "ids with a row are not drawn for"
    )


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


def test_a_time_is_raised_not_set_and_data_time_moves_even_if_every_id_is_barred() -> None:
    """A departure: Monolith sets the time of a row back when older data updates it."""
    table = sgd_table()
    table.assign(ids(1), column(1), 2**31 + 5)  # Monolith keeps data time in 31 bits
    table.assign(ids(2), column(1), 60)
    table.apply_gradients(ids(1, 2), column(1, 1), [1], req_time_s=70)
    assert table.lookup_entry(ids(1, 2)).times.tolist() == [2**31 + 5, 70]
    assert table.max_update_s == 2**31 + 5
    barring = filtered_table(3)
    barring.apply_gradients(ids(1), column(1), [1], req_time_s=90)
    assert (barring.max_update_s, barring.size) == (90, 0)


@pytest.mark.golden("InitializerCombination.Basic")
def test_each_segment_of_a_new_row_starts_with_its_own_initializer() -> None:
    segments = (
        Segment(1, Constants(3), Sgd()),
        Segment(2, Constants(4), Sgd()),
        Segment(1, Ones(), Sgd()),
    )
    table = EmbeddingTable(TableConfig("t", segments))
    assert table.lookup(ids(5)).tolist() == [[0, 0, 0, 0]], "a lookup starts no row"
    table.assign_add(ids(5), np.array([[0, 1, 2, 0]], np.float32))
    assert table.lookup(ids(5)).tolist() == [[3, 5, 6, 1]]
    table.assign(ids(5), np.zeros((1, 4), np.float32))
    table.reinitialize(ids(5))
    assert table.lookup(ids(5)).tolist() == [[3, 4, 4, 1]]


@pytest.mark.golden("RandomUniformInitializer.Basic")
def test_a_random_uniform_row_fills_its_range() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1000, RandomUniform(-1, 1), Sgd()),)))
    table.apply_gradients(ids(1), np.zeros((1, 1000), np.float32), [1])
    row = table.lookup(ids(1))
    assert 0.9 < row.max() < 1
    assert -1 <= row.min() < -0.9


@pytest.mark.golden("RawRetriever.Basic", "FakeQuantRetriever.Basic", "CombinedRetriever.Basic")
def test_lookups_round_only_the_segments_that_serving_will_round() -> None:
    segments = Segment(10, Zeros(), Sgd(), Fp32()), Segment(20, Zeros(), Sgd(), FixedR8(1.0))
    table = EmbeddingTable(TableConfig("t", segments))
    rows = np.random.default_rng(0).uniform(-0.99, 0.99, (100, 30)).astype(np.float32)
    table.assign(np.arange(100), rows)
    shown = table.lookup(np.arange(100))
    np.testing.assert_array_equal(shown[:, :10], rows[:, :10])
    assert 0 < np.abs(shown[:, 10:] - rows[:, 10:]).max() <= 1 / 128
    np.testing.assert_array_equal(shown[:, 10:] * 128, np.round(shown[:, 10:] * 128))
    np.testing.assert_array_equal(table.lookup_entry(np.arange(100)).values, rows)


@pytest.mark.golden("QuantizedEntryAccessor.FixedRange")
def test_a_fixed_r8_segment_shows_its_weight_cut_at_the_range() -> None:
    for r in (1.0, 0.5):
        table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(), FixedR8(r)),)))
        table.assign(ids(1), column(1))
        assert abs(table.lookup(ids(1)) - r) <= r / 128
        table.apply_gradients(ids(1), column(1), [1])
        assert table.lookup(ids(1)) == 0


@pytest.mark.golden("HashNetQuantizer.ForwardAndBackward")
def test_a_one_bit_segment_shows_a_tanh_that_gets_steeper_with_the_steps() -> None:
    """The gradient that reaches w = 2, read off a step at rate 1024, which keeps all of its
    digits."""
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


@pytest.mark.golden("HashNetRetriever.Basic")
def test_a_one_bit_segment_gets_steeper_at_its_first_stair() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(), OneBit(step_size=100)),)))
    table.assign(ids(1, 2), column(1, 1))
    table.apply_gradients(ids(1), column(1), [1024], step=100)
    passed = (1 - table.lookup_entry(ids(1)).values[0, 0]) / 1024
    assert passed == pytest.approx(0.35840667 * 0.1, rel=4e-7)
    np.testing.assert_allclose(table.lookup(ids(2)), [[0.1 * np.tanh(np.sqrt(1.5))]], rtol=2e-7)
