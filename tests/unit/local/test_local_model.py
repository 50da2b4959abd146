"""Rows and variables in this process, read and written by any number of threads."""

import numpy as np
import pytest

import megalith.client as mg
from megalith.collective.ranks import Ranks
from megalith.engine.variable.variable import UpdateKind
from megalith.errors import NonFiniteValue
from megalith.local import LocalModel, saving
from megalith.schema import AdmissionConfig, Segment, TableConfig

ORDERS = ("random", "sorted", "clustered")
ROW = Segment(4, mg.RandomUniform(-0.1, 0.1), mg.Adagrad(0.1))
WEIGHTS = mg.VariableConfig("weights", np.ones((50, 4), np.float32), mg.Adam(0.01))


def model_of(num_threads, **settings):
    model = LocalModel(num_threads)
    model.create([TableConfig("rows", (ROW,), **settings)], [WEIGHTS])
    return model


def ids_in(order, count):
    rng = np.random.default_rng(5)
    ids = rng.choice(1 << 40, count, replace=False)
    if order == "sorted":
        ids.sort()
    if order == "clustered":
        ids = np.arange(count) + (ids[0] << 8)
    return mg.Ids(ids, distinct=True)


@pytest.mark.parametrize("order", ORDERS)
def test_threads_read_and_write_what_one_does(order):
    ids = ids_in(order, 300_000)
    rng = np.random.default_rng(6)
    gradients = rng.normal(0, 1, (len(ids), 4)).astype(np.float32)
    by_weight = rng.normal(0, 1, (50, 4)).astype(np.float32)

    found = []
    for num_threads in (1, 3):
        model = model_of(num_threads)
        for step in range(3):
            model.push({"rows": (ids, gradients)}, {"weights": by_weight}, step=step)

        assert model.num_rows == len(ids)
        found.append(model.read({"rows": ids}, ["weights"]))
        counts = model.tables()[0].stats()
        assert (counts.created, counts.looked_up, counts.found) == (300_000,) * 3
        model.close()

    (one, of_one), (three, of_three) = found
    np.testing.assert_array_equal(three["rows"], one["rows"])
    np.testing.assert_array_equal(of_three["weights"], of_one["weights"])


def test_equal_ids_are_summed_also_if_there_are_threads():
    values = np.arange(60_000) % 20_000
    ids = mg.Ids(values)
    gradients = np.ones((values.size, 4), np.float32)
    found = []
    for num_threads in (1, 3):
        model = model_of(num_threads)
        model.push({"rows": (ids, gradients)}, {})
        assert model.num_rows == 20_000
        rows, _ = model.read({"rows": np.arange(20_000)}, [])
        found.append(rows["rows"])
        model.close()

    np.testing.assert_array_equal(found[1], found[0])


def test_a_filter_sees_an_id_once_for_each_push_however_often_it_is_repeated():
    model = model_of(1, admission=AdmissionConfig(default_threshold=2))
    repeated = mg.Ids([7, 7, 7, 7, 8])
    ones = np.ones((5, 4), np.float32)
    counts = []
    for _ in range(3):
        model.push({"rows": (repeated, ones)}, {})
        counts.append(model.num_rows)

    assert counts == [0, 0, 2]


def test_a_filter_sees_ids_in_their_order_also_if_there_are_threads():
    ids = ids_in("random", 100_000)
    gradients = np.ones((len(ids), 4), np.float32)
    # Too small for all of them: which ones it remembers depends on the order.
    small = AdmissionConfig(default_threshold=2, capacity=20_000)
    held = []
    for num_threads in (1, 3):
        model = model_of(num_threads, admission=small)
        for _ in range(2):
            model.push({"rows": (ids, gradients)}, {})
        held.append(model.tables()[0].contains(ids.values))
        model.close()

    assert 0 < held[0].sum() < len(ids)
    np.testing.assert_array_equal(held[1], held[0])


def test_a_refused_gradient_leaves_rows_and_variables_as_they_were():
    model = model_of(3)
    ids = ids_in("random", 50_000)
    gradients = np.ones((len(ids), 4), np.float32)
    by_weight = np.ones((50, 4), np.float32)
    by_weight[3, 1] = np.nan
    with pytest.raises(NonFiniteValue, match="weights"):
        model.push({"rows": (ids, gradients)}, {"weights": by_weight})

    assert model.num_rows == 0
    np.testing.assert_array_equal(model.variables()[0].read(), WEIGHTS.initial)
    model.close()


def test_an_error_of_a_thread_is_raised_after_all_have_ended(monkeypatch):
    model = model_of(2)
    ids = ids_in("random", 50_000)
    gradients = np.ones((len(ids), 4), np.float32)
    variable = model.variables()[0]

    def fails(kind, update, step):
        assert kind is UpdateKind.GRADIENT
        raise MemoryError("no room")

    monkeypatch.setattr(variable, "apply", fails)
    with pytest.raises(MemoryError, match="no room"):
        model.push({"rows": (ids, gradients)}, {"weights": np.ones((50, 4), np.float32)})

    assert model.num_rows == len(ids)
    model.close()


def test_blobs_of_the_checkpoint_that_it_goes_on_from_are_saved_again(tmp_path):
    first = LocalModel()
    first.adopt_blobs({"torch": b"weights"})
    saved = saving.save(first, tmp_path, 1, b"", Ranks())
    going_on = LocalModel()
    going_on.restore(saved)
    again = saving.save(going_on, tmp_path, 2, b"", Ranks())
    last = LocalModel()
    last.restore(again)
    assert last.blobs() == {"torch": b"weights"}
