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
