"""Settings of a table that was made before, and what follows from them: filters, touched keys,
pulled weights."""

import threading

import numpy as np
import pytest

from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.errors import InvalidSetting
from megalith.schema import (
    AdmissionConfig,
    Dc,
    FilterKind,
    FixedR8,
    OneBit,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    Zeros,
)
from support.delta import take_changes

KEY = np.array([7])


def config(**settings):
    return TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), **settings)


def rule(threshold, **settings):
    return AdmissionConfig(
        **{"kind": FilterKind.SLIDING, "default_threshold": threshold, "capacity": 1000} | settings
    )


def push(table, keys=KEY):
    return table.apply_gradients(keys, -np.ones((len(keys), 1), np.float32))


def test_the_configuration_alone_brings_filter_and_touched_ids():
    table = EmbeddingTable(config(admission=rule(1), touched_capacity=10))
    assert push(table).barred == 1
    assert take_changes(table).tolist() == []
    assert push(table).created == 1
    assert table.stats().touched == 1
    assert take_changes(table).tolist() == [7]


def test_overflowing_touched_ids_are_reported_by_the_call_and_counted():
    table = EmbeddingTable(config(touched_capacity=10))
    assert push(table, np.arange(10)).touched_overflow == 0
    assert push(table, np.arange(100, 102)).touched_overflow == 12
    assert table.reinitialize(np.arange(200, 210)).tolist() == [0] * 10
    assert (table.stats().touched_overflow, table.stats().touched) == (22, 0)


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        ({}, True),
        ({"default_threshold": 5}, True),
        ({"threshold_by_slot": {3: 9}}, True),
        ({"capacity": 2000}, False),
        ({"kind": FilterKind.PLAIN}, False),
        ({"threshold_by_slot": {3: 16}}, False),  # above 15 cells are wider
    ],
)
def test_new_admission_settings_take_effect_and_keep_the_counts_where_cells_stay_the_same(
    change, counted
):
    table = EmbeddingTable(config(admission=rule(3)))
    push(table)
    push(table)
    after = rule(3, **change)
    table.reconfigure(config(admission=after))
    assert isinstance(table.admission, CountingFilter)
    assert table.admission.counts_of(KEY).tolist() == [2 if counted else 0]
    pushes = 0
    while not push(table).created:
        pushes += 1
    assert pushes == after.default_threshold - (2 if counted else 0)


def test_a_filter_may_come_and_go():
    table = EmbeddingTable(config())
    table.reconfigure(config(admission=rule(2)))
    assert push(table).barred == 1
    table.reconfigure(config())
    assert push(table).created == 1


def test_touched_ids_survive_another_capacity_and_go_with_none():
    table = EmbeddingTable(config(touched_capacity=5))
    push(table, np.arange(4))
    table.reconfigure(config(touched_capacity=100))
    push(table, np.arange(3, 50))
    assert take_changes(table).tolist() == list(range(50))
    push(table, np.arange(50))
    table.reconfigure(config(touched_capacity=10))
    assert table.stats().touched_overflow == 100, "those of the sealed set, and of the open one"
    table.reconfigure(config(touched_capacity=0))
    assert not table.changes.is_on
    assert push(table).touched_overflow == 0


def test_settings_that_there_is_no_memory_for_change_nothing(monkeypatch):
    before = config(admission=rule(3), touched_capacity=5)
    table = EmbeddingTable(before)
    push(table)

    def fail(capacity):
        raise MemoryError(capacity)

    monkeypatch.setattr(table.changes, "resize", fail)
    with pytest.raises(MemoryError):
        table.reconfigure(config(admission=rule(1), touched_capacity=50))
    assert table.config == before
    assert [push(table).created for _ in range(3)] == [0, 0, 1], "after three times in all"


def test_a_negative_touched_capacity_is_refused():
    with pytest.raises(InvalidSetting, match="touched_capacity"):
        config(touched_capacity=-1)


def test_dedup_sums_gradients_and_keeps_the_first_pulled_weights():
    """dc: g + lambda * g * g * (w - pulled), here with w = 0, once with the sum of both
    gradients."""
    table = EmbeddingTable(
        TableConfig("t", (Segment(2, Zeros(), Dc(Sgd(1.0), 0.5)), Segment(1, Zeros(), Sgd(1.0))))
    )
    gradients = np.array([[1, 2, 3], [5, 5, 5], [10, 20, 30]], np.float32)
    pulled = np.array([[0.1, 0.2, 9], [0, 0, 0], [100, 100, 100]], np.float32)
    table.apply_gradients(
        np.array([4, 8, 4]), np.concatenate([gradients, pulled], axis=1), dedup=True
    )
    total = np.array([11, 22, 33], np.float32)
    compensation = 0.5 * total[:2] ** 2 * (0 - pulled[0, :2])
    expected = -(total + np.append(compensation, 0)).astype(np.float32)
    rows = table.lookup(np.array([4, 8]))
    np.testing.assert_allclose(rows[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(rows[1], [-5, -5, -5])


def test_of_threads_that_reinitialize_the_same_ids_exactly_one_creates_each():
    table = EmbeddingTable(TableConfig("t", (Segment(4, RandomUniform(), Sgd()),)), clock=lambda: 5)
    keys, results, start = np.arange(50_000), [], threading.Barrier(4)

    def work(order):
        start.wait()
        status = np.empty(keys.size, np.int64)
        for part in np.array_split(order, 20):
            status[part] = table.reinitialize(part)
        results.append(status)

    threads = [
        threading.Thread(target=work, args=(order,))
        for order in (keys, keys[::-1].copy(), keys, keys)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(np.sum(results, axis=0), np.full(keys.size, 3))
    assert table.stats().created == keys.size


def test_reinitialize_while_rows_expire_counts_each_creation_once():
    """Every row that exists in the end or was dropped was created by exactly one call that said
    so."""
    table = EmbeddingTable(config(expire_days=0), clock=lambda: 5)
    keys, created, dropped, done = np.arange(5000), [0, 0], [0], threading.Event()

    def reinitialize(i):
        for _ in range(50):
            created[i] += int(np.count_nonzero(table.reinitialize(keys) == 0))

    def expire():
        while not done.is_set():
            dropped[0] += table.expire(5)

    expiring = threading.Thread(target=expire)
    threads = [threading.Thread(target=reinitialize, args=(i,)) for i in range(2)]
    for thread in (expiring, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    expiring.join()
    assert sum(created) == dropped[0] + table.size == table.stats().created
    assert dropped[0] > 0


def test_reinitialize_says_which_ids_found_no_room():
    table = EmbeddingTable(config(memory_budget_bytes=400_000))
    keys = np.arange(50_000)
    status = table.reinitialize(keys)
    np.testing.assert_array_equal(status == 0, table.contains(keys))
    assert set(status.tolist()) == {0, -1}
    np.testing.assert_array_equal(table.reinitialize(keys), np.where(status == 0, 1, -1))


def test_a_sighting_counts_as_often_as_the_id_occurs_also_beside_one_whose_sum_overflows():
    table = EmbeddingTable(config(admission=rule(2), skip_nonfinite=True))
    keys, gradients = np.array([1, 1, 2, 2]), np.array([[1], [1], [3e38], [3e38]], np.float32)
    result = table.apply_gradients(keys, gradients, dedup=True)
    assert (result.barred, result.nonfinite) == (1, 1)
    assert table.admission.counts_of(np.array([1, 2])).tolist() == [2, 0]


def test_settings_that_cannot_be_change_nothing():
    table = EmbeddingTable(
        config(admission=rule(2), touched_capacity=10, memory_budget_bytes=1 << 20)
    )
    push(table)
    before, filter_ = table.config, table.admission
    for other in (
        config(admission=rule(2, kind=FilterKind.PLAIN, capacity=0), touched_capacity=5),
        config(admission=rule(70_000), touched_capacity=0),
        config(admission=rule(3), memory_budget_bytes=10),
        TableConfig("t", (Segment(1, Zeros(), Dc(Sgd(1.0)), FixedR8()),), touched_capacity=5),
    ):
        with pytest.raises(InvalidSetting):
            table.reconfigure(other)
        assert table.config is before
        assert table.admission is filter_
        assert filter_.counts_of(KEY).tolist() == [1]
        assert table.changes.capacity == 10


def test_a_memory_budget_may_change():
    table, keys = EmbeddingTable(config(memory_budget_bytes=400_000)), np.arange(50_000)
    few = push(table, keys).created
    table.reconfigure(config(memory_budget_bytes=800_000))
    more = push(table, keys).created
    assert 0 < few < few + more < keys.size
    assert 400_000 < table.nbytes <= 800_000
    table.reconfigure(config(memory_budget_bytes=400_000))
    assert push(table, keys + 100_000).refused == keys.size
    held = keys[table.contains(keys)]
    table.erase(held[: more + 10])
    assert push(table, keys + 100_000).created == 10
    table.reconfigure(config())
    assert push(table, keys + 100_000).refused == 0


def test_the_same_settings_again_leave_the_scale_of_one_bit_rows_alone():
    one_bit = TableConfig("t", (Segment(1, Zeros(), Sgd(0.0), OneBit(step_size=1000)),))
    table = EmbeddingTable(one_bit)
    table.assign(KEY, np.ones((1, 1), np.float32))
    table.apply_gradients(KEY, np.ones((1, 1), np.float32), step=1000)
    shown = table.lookup(KEY)
    np.testing.assert_allclose(shown, [[0.1 * np.tanh(np.sqrt(6))]], rtol=1e-6)
    table.reconfigure(one_bit)
    np.testing.assert_array_equal(table.lookup(KEY), shown)


def test_new_rates_expiry_and_retention_hold_from_the_next_call_on():
    table = EmbeddingTable(config())
    push(table, np.arange(10))
    table.reconfigure(
        TableConfig("t", (Segment(1, Zeros(), Sgd(3.0)),), expire_days=0, max_expire_share=0.5)
    )
    push(table, np.arange(5))
    np.testing.assert_array_equal(table.lookup(np.arange(10))[:, 0], [4] * 5 + [1] * 5)
    assert table.expire() == 5
