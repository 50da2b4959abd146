import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.client._partition import Partition, checked_gradients, checked_ids
from megalith.wire import routing
from megalith.wire.errors import InvalidRequest, NonFiniteValue, ShapeMismatch

ids_of_any_kind = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=50)


@given(ids_of_any_kind, st.integers(1, 5))
def test_every_distinct_id_goes_to_its_owner_once(ids, num_ps):
    current = routing.Routing(1, ("a",) * num_ps, routing.even_owners(num_ps))
    partition = Partition.of(np.array(ids, np.int64), current)
    sent = {}
    for index, positions in partition.parts():
        for key in partition.keys[positions].tolist():
            assert key not in sent
            sent[key] = index
    assert set(sent) == set(ids)
    assert all(current.owner_of(np.array([key]))[0] == index for key, index in sent.items())
    assert partition.keys[partition.inverse].tolist() == ids


@given(ids_of_any_kind.filter(bool))
def test_gradients_of_equal_ids_are_summed(ids):
    partition = Partition.of(np.array(ids, np.int64), routing.Routing(1, ("a",), routing.even_owners(1)))
    gradients = np.arange(2 * len(ids), dtype=np.float32).reshape(-1, 2)
    expected = {}
    for key, row in zip(ids, gradients, strict=True):
        expected[key] = expected.get(key, 0) + row
    summed = partition.summed(gradients)
    assert summed.dtype == np.float32
    for key, row in zip(partition.keys.tolist(), summed, strict=True):
        np.testing.assert_array_equal(row, expected[key])


def test_ids_that_are_not_integers_are_refused():
    for bad in ([1.5], [[1, 2]], ["a"]):
        with pytest.raises(InvalidRequest, match="table t: ids are"):
            checked_ids("t", bad)
    assert checked_ids("t", []).dtype == np.int64


def test_gradients_of_the_wrong_kind_are_refused():
    with pytest.raises(ShapeMismatch, match=r"expected float32 \[2, dim\]"):
        checked_gradients("t", np.zeros((3, 4), np.float32), 2)
    with pytest.raises(ShapeMismatch):
        checked_gradients("t", np.zeros((2, 4), np.int64), 2)
    with pytest.raises(NonFiniteValue, match="nothing was sent"):
        checked_gradients("t", np.full((2, 4), np.nan, np.float32), 2)


def test_golden_distribution_ops_test_unique_key_with_value_and_offset_and_fill_with_offset_map():
    """A ragged row is a table here: its distinct ids, where their floats go, and the gradients back."""
    rows, dims = ([], [0, 1, 2, 1, 0], [0, 1, 0], []), (1, 2, 3, 4)
    current = routing.Routing(1, ("a",), routing.even_owners(1))
    partitions = [Partition.of(np.array(row, np.int64), current) for row in rows]
    assert [partition.keys.tolist() for partition in partitions] == [[], [0, 1, 2], [0, 1], []]

    begins = np.cumsum([0, *(len(row) * dim for row, dim in zip(rows, dims, strict=True))])
    offsets = [
        [(begin + np.flatnonzero(partition.inverse == k) * dim).tolist() for k in range(partition.keys.size)]
        for partition, dim, begin in zip(partitions, dims, begins[:-1], strict=True)
    ]
    assert offsets == [[], [[0, 8], [2, 6], [4]], [[10, 16], [13]], []]

    values, grads, expanded, summed = np.arange(12), np.arange(19, dtype=np.float32), [], []
    for partition, dim in zip(partitions, dims, strict=True):
        distinct, values = values[: partition.keys.size * dim].reshape(-1, dim), values[partition.keys.size * dim :]
        expanded += distinct[partition.inverse].reshape(-1).tolist()
        floats = partition.inverse.size * dim
        if floats:
            summed += partition.summed(grads[:floats].reshape(-1, dim)).reshape(-1).tolist()
        grads = grads[floats:]
    assert expanded == [0, 1, 2, 3, 4, 5, 2, 3, 0, 1, 6, 7, 8, 9, 10, 11, 6, 7, 8]
    assert summed == [8, 10, 8, 10, 4, 5, 26, 28, 30, 13, 14, 15]
