import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.client import Ragged
from megalith.errors import InvalidRequest, ShapeMismatch

rows_of_ids = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=8)


def as_lists(ragged):
    return [part.tolist() for part in np.split(ragged.values, ragged.row_splits[1:-1])][
        : len(ragged)
    ]


@given(rows_of_ids)
def test_lists_of_any_lengths_come_back_as_they_were(rows):
    assert as_lists(Ragged.of(rows)) == rows


@given(rows_of_ids, st.integers(1, 4))
def test_the_first_ids_of_every_example_are_kept(rows, limit):
    assert as_lists(Ragged.of(rows).first(limit)) == [row[:limit] for row in rows]


def test_a_vector_has_one_id_per_example_and_a_matrix_a_line():
    assert as_lists(Ragged.of([7, 8])) == [[7], [8]]
    assert as_lists(Ragged.of(np.array([[1, 2], [3, 4]], np.int32))) == [[1, 2], [3, 4]]
    assert as_lists(Ragged.of(np.empty((2, 0)))) == [[], []]
    assert len(Ragged.of([])) == 0


def test_a_shared_list_is_one_row():
    ragged = Ragged.shared([1, 2, 3])
    assert (ragged.is_shared, len(ragged)) == (True, 1)


@pytest.mark.golden("G8")
def test_row_ids_are_computed_once():
    ragged = Ragged.of([[], [1], [2, 3]])
    assert ragged.row_ids.tolist() == [1, 2, 2]
    assert ragged.row_ids is ragged.row_ids


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([0, 2, 1, 3], "fall after position 1, from 2"),
        ([0, 2], "end at 2, but there are 3 values"),
        ([0, 2, 4], "end at 4"),
        ([1, 3], "start with"),
        ([], "start with"),
    ],
)
def test_row_splits_that_are_no_cut_of_the_values_are_refused(splits, message):
    with pytest.raises(ShapeMismatch, match=message):
        Ragged(np.arange(3), np.array(splits, np.int64))


def test_values_and_splits_of_another_kind_are_refused():
    with pytest.raises(InvalidRequest, match="values are float64"):
        Ragged(np.array([1.5]), np.array([0, 1]))
    with pytest.raises(InvalidRequest, match="row_splits are float64"):
        Ragged(np.array([1]), np.array([0.0, 1.0]))
    with pytest.raises(InvalidRequest, match="values are int64 \\[1, 1\\]"):
        Ragged(np.array([[1]]), np.array([0, 1]))
    with pytest.raises(InvalidRequest, match="values are"):
        Ragged.of([["a"], []])
    with pytest.raises(ShapeMismatch, match="a vector or a matrix"):
        Ragged.of(np.zeros((1, 1, 1), np.int64))
    with pytest.raises(ShapeMismatch, match="a shared list is one"):
        Ragged(np.array([1]), np.array([0, 1, 1]), is_shared=True)
