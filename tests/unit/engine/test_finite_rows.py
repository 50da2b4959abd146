"""Finite gradients leave finite rows, and a batch with NaN waits for no compiler."""

import numpy as np
import pytest

from megalith.engine.kernels import undo, write
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.ps.warm_up import warm_up
from megalith.schema import (
    Adadelta,
    Adagrad,
    Adam,
    Amsgrad,
    Ftrl,
    GroupAdagrad,
    Rmsprop,
    Segment,
    Sgd,
    TableConfig,
    Zeros,
)
from support.kernel_census import kernels

KEYS = np.arange(300, dtype=np.int64)


def table_of(optimizer, dim=3, **settings):
    return EmbeddingTable(TableConfig("t", (Segment(dim, Zeros(), optimizer),), **settings))


def whole(table, keys=KEYS):
    entries = table.lookup_entry(keys)
    return np.concatenate([entries.values, entries.state], axis=1)


def test_a_huge_gradient_neither_spoils_a_row_nor_stops_it_from_learning():
    """1e20, whose square is no float32, then 1.0: as if the first had never come, for those rows
    alone.

    The optimizers share a row, and each has rows in which it alone is hit: seven tables would
    compile for a minute.
    """
    optimizers = [Adam(), Ftrl(), GroupAdagrad(), Adagrad(), Amsgrad(), Adadelta(), Rmsprop()]
    segments = tuple(Segment(3, Zeros(), optimizer) for optimizer in optimizers)
    table, other = (EmbeddingTable(TableConfig("t", segments)) for _ in range(2))
    ordinary = np.ones((KEYS.size, 3 * len(optimizers)), np.float32)
    huge = ordinary.copy()
    hit = np.arange(0, KEYS.size, 10)
    huge[hit, 3 * (hit // 10 % len(optimizers)) + 1] = 1e20
    is_hit = np.isin(KEYS, hit)
    assert table.apply_gradients(KEYS, huge).nonfinite == hit.size
    table.apply_gradients(KEYS, ordinary)
    assert table.stats().nonfinite == hit.size
    other.apply_gradients(KEYS, ordinary)
    np.testing.assert_array_equal(whole(table)[is_hit], whole(other)[is_hit])
    other.apply_gradients(KEYS, ordinary)
    np.testing.assert_array_equal(whole(table)[~is_hit], whole(other)[~is_hit])
    assert np.isfinite(whole(table)).all()
    assert table.lookup(KEYS).all()


def test_weights_that_grow_from_step_to_step_stop_before_infinity():
    table, keys = table_of(Sgd(1.0), 1), np.arange(3)
    gradients = np.array([[-1.5e38], [1], [0]], np.float32)
    results = [table.apply_gradients(keys, gradients).nonfinite for _ in range(4)]
    assert results == [0, 0, 1, 1]
    np.testing.assert_array_equal(table.lookup(keys), np.array([[3e38], [-4], [0]], np.float32))


def test_a_sum_that_overflows_is_left_out_and_counted():
    table, keys = table_of(Sgd(1.0), 2), np.arange(2)
    values = np.array([[3e38, 1], [1, 1]], np.float32)
    assert table.assign_add(keys, values).nonfinite == 0
    assert table.assign_add(keys, values).nonfinite == 1
    np.testing.assert_array_equal(table.lookup(keys), np.array([[3e38, 1], [2, 2]], np.float32))
    assert table.stats().nonfinite == 1


def test_all_updates_of_a_row_that_is_spoiled_in_a_block_are_left_out_and_counted():
    table, keys = table_of(Adagrad(), 2), np.array([5, 6, 5])
    gradients = np.array([[1, 1], [1, 1], [1e20, 1]], np.float32)
    assert table.apply_gradients(keys, gradients).nonfinite == 2
    assert table.lookup(np.array([5, 6])).any(axis=1).tolist() == [False, True]


@pytest.mark.parametrize("width", [1, 3, 4, 15, 16, 17, 33, 70])
def test_the_kernel_finds_what_is_not_finite_at_every_place_of_a_row(width):
    rng = np.random.default_rng(width)
    for spoiled in (np.nan, np.inf, -np.inf, np.float32(3.4e38)):
        for place in range(width):
            values = rng.standard_normal(8 * width).astype(np.float32)
            starts = np.array([5 * width, -1, 0, 3 * width])
            before = np.zeros(starts.size * width, np.float32)
            undo.keep_rows(values, starts, width, before)
            kept = values.copy()
            values[3 * width + place] = spoiled
            values[width] = np.nan  # a row that is not among them
            is_spoiled = not np.isfinite(spoiled)
            assert undo.put_back(values, starts, width, before) == is_spoiled
            if is_spoiled:
                np.testing.assert_array_equal(
                    values[3 * width : 4 * width], kept[3 * width : 4 * width]
                )
            np.testing.assert_array_equal(values[5 * width :], kept[5 * width :])


def test_a_batch_with_nan_meets_no_kernel_that_is_still_to_be_compiled():
    optimizers = (Sgd(), Adagrad())
    warm_up(optimizers)
    compiled = {name: len(kernel.signatures) for name, kernel in kernels()}
    gradients = np.ones((KEYS.size, 3), np.float32)
    gradients[7] = np.nan
    keys = KEYS.copy()
    keys.flags.writeable = gradients.flags.writeable = False  # as they come from the wire
    for optimizer in optimizers:
        table = table_of(optimizer, skip_nonfinite=True)
        assert table.apply_gradients(keys, gradients, req_time_s=5).nonfinite == 1
        assert table.apply_gradients(keys, gradients, req_time_s=6).nonfinite == 1
    assert {name: len(kernel.signatures) for name, kernel in kernels()} == compiled


def test_writes_are_compiled_for_read_only_arrays_alone():
    """Whatever optimizers other tests used: there is one kernel for each, however a batch was
    cut."""
    table = table_of(Sgd())
    table.apply_gradients(KEYS.copy(), np.ones((KEYS.size, 3), np.float32))
    names = write.write.py_func.__code__.co_varnames
    keys, inputs = names.index("ids"), names.index("inputs")
    assert write.write.signatures
    for signature in write.write.signatures:
        assert not signature[keys].mutable
        assert not signature[inputs].mutable
