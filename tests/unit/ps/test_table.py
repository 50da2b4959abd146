import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.ps.table import EmbeddingTable, RowBatch
from megalith.wire.errors import DuplicateKeys, NonFiniteValue, ShapeMismatch, TableConflict, UnsupportedLayout
from megalith.wire.schema import Adagrad, RandomUniform, Segment, Sgd, TableConfig, Zeros


def table(dim=2, optimizer=None, initializer=None):
    return EmbeddingTable(TableConfig("t", (Segment(dim, initializer or Zeros(), optimizer or Sgd(0.1)),)))


def keys(*values):
    return np.array(values, np.int64)


def grads(*rows):
    return np.array(rows, np.float32)


def test_an_unknown_id_reads_zeros_and_is_not_added():
    held = table(initializer=RandomUniform())
    np.testing.assert_array_equal(held.lookup(keys(5, -7)), np.zeros((2, 2)))
    assert len(held) == 0


def test_golden_adagrad_optimizer_basic():
    held = table(optimizer=Adagrad(0.1, initial_accumulator_value=1.0))
    held.apply_gradients(keys(1), grads([1, 2]))
    np.testing.assert_allclose(held.lookup(keys(1))[0], [-0.07071067, -0.08944272], atol=1e-6)


def test_golden_adagrad_optimizer_optimize_with_weight_decay():
    held = table(optimizer=Adagrad(0.1, initial_accumulator_value=1.0, weight_decay_factor=0.1))
    held.apply_gradients(keys(1), grads([1, 2]))
    held.apply_gradients(keys(1), grads([1, 2]))
    np.testing.assert_allclose(held.lookup(keys(1))[0], [-0.128173, -0.155943], atol=1e-6)


def test_the_rate_of_a_push_wins_over_the_table_s():
    held = table(optimizer=Sgd(0.1))
    held.apply_gradients(keys(1), grads([1, 2]), learning_rates=(2.0,))
    np.testing.assert_array_equal(held.lookup(keys(1)), [[-2, -4]])


@given(
    st.lists(st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.floats(-4, 4, width=32), max_size=30), max_size=6),
    st.sampled_from(["sgd", "adagrad"]),
)
def test_any_sequence_of_pushes_equals_a_dictionary_of_rows(pushes, kind):
    optimizer = Sgd(0.5) if kind == "sgd" else Adagrad(0.5, 0.25)
    held, rows = table(1, optimizer), {}
    for push in pushes:
        held.apply_gradients(np.fromiter(push, np.int64, len(push)), np.array(list(push.values()), np.float32)[:, None])
        for key, g in push.items():
            w, norm = rows.get(key, (np.float32(0), np.float32(0.25)))
            norm = norm + np.float32(g) * np.float32(g)
            rows[key] = (w - np.float32(0.5) * np.float32(g) / (np.sqrt(norm) if kind == "adagrad" else 1), norm)
    assert len(held) == len(rows)
    expected = np.array([[w] for w, _ in rows.values()], np.float32).reshape(-1, 1)
    np.testing.assert_allclose(held.lookup(np.fromiter(rows, np.int64, len(rows))), expected, rtol=1e-5, atol=1e-6)


def test_growth_keeps_every_row():
    held = table(1, Sgd(1.0))
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 50_000)
    for part in np.array_split(ids, 7):
        held.apply_gradients(part, np.ones((part.size, 1), np.float32))
    assert len(held) == 50_000
    np.testing.assert_array_equal(held.lookup(ids), -np.ones((50_000, 1)))
    assert np.sort(held.keys()).tolist() == np.sort(ids).tolist()


def test_random_rows_start_in_range_and_depend_on_the_id_alone():
    first, second = (table(4, Sgd(0.0), RandomUniform(-0.5, 0.25)) for _ in range(2))
    ids = np.arange(1000)
    first.apply_gradients(ids, np.zeros((1000, 4), np.float32))
    second.apply_gradients(ids[::-1].copy(), np.zeros((1000, 4), np.float32))
    rows = first.lookup(ids)
    assert rows.min() >= -0.5
    assert rows.max() < 0.25
    assert abs(rows.mean() + 0.125) < 0.02
    np.testing.assert_array_equal(rows, second.lookup(ids))


BAD = {
    "width": (keys(1, 2), grads([1], [2]), (), ShapeMismatch, r"\[2, 1\] for 2 ids of dim 2"),
    "count": (keys(1, 2), grads([1, 2]), (), ShapeMismatch, r"\[1, 2\]"),
    "nan": (keys(1, 7), grads([1, 2], [np.nan, 0]), (), NonFiniteValue, "id 7"),
    "infinity": (keys(1), grads([np.inf, 0]), (), NonFiniteValue, "id 1"),
    "duplicates": (keys(3, 3), grads([1, 2], [1, 2]), (), DuplicateKeys, "distinct"),
    "nan rate": (keys(1), grads([1, 2]), (float("nan"),), NonFiniteValue, "learning rates"),
    "rates": (keys(1), grads([1, 2]), (0.1, 0.2), ShapeMismatch, "2 learning rates for 1 segments"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_gradients_are_refused_and_change_nothing(name):
    ids, gradients, rates, error, message = BAD[name]
    held = table()
    with pytest.raises(error, match=message):
        held.apply_gradients(ids, gradients, rates)
    assert len(held) == 0


def test_several_segments_are_refused_clearly():
    with pytest.raises(UnsupportedLayout, match="2 segments"):
        EmbeddingTable(TableConfig("t", (Segment(1), Segment(2))))


def test_reconfigure_takes_a_new_rate_and_refuses_another_layout():
    held = table(optimizer=Sgd(0.1))
    held.reconfigure(TableConfig("t", (Segment(2, Zeros(), Sgd(1.0)),)))
    held.apply_gradients(keys(1), grads([1, 1]))
    np.testing.assert_array_equal(held.lookup(keys(1)), [[-1, -1]])
    with pytest.raises(TableConflict, match="use another name"):
        held.reconfigure(TableConfig("t", (Segment(3, Zeros(), Sgd(1.0)),)))


def test_whole_rows_survive_dump_and_load():
    source, target = (table(optimizer=Adagrad(0.1)) for _ in range(2))
    source.apply_gradients(keys(1, 2, 3), grads([1, 2], [3, 4], [5, 6]), req_time_s=99)
    target.load(source.dump(keys(2, 77, 3)))
    assert len(target) == 2
    for held in (source, target):
        held.apply_gradients(keys(2, 3), grads([1, 1], [1, 1]))
    np.testing.assert_array_equal(target.lookup(keys(2, 3)), source.lookup(keys(2, 3)))
    assert source.dump(keys(1)).updated_s.tolist() == [99]


def test_rows_of_another_width_are_refused():
    with pytest.raises(ShapeMismatch, match=r"rows \[1, 3\], expected \[1, 2\]"):
        table().load(RowBatch(keys(1), np.zeros((1, 3), np.float32), np.zeros(1, np.uint32)))


def test_threads_that_push_to_one_table_lose_nothing():
    held, ids = table(1, Sgd(1.0)), np.arange(2000)

    def push():
        for _ in range(50):
            held.apply_gradients(ids, np.ones((ids.size, 1), np.float32))
            assert (held.lookup(ids) <= -1).all()

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(held.lookup(ids), np.full((2000, 1), -200))
