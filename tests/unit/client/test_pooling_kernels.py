"""The kernels that pool rows and spread gradients, each against NumPy, row by row."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.client._kernels import pooling


@st.composite
def uses(draw):
    """Rows, the uses of 0 to 5 examples, a range of columns, where they meet a matrix, and numbers
    for it."""
    width, first, base = draw(st.integers(1, 9)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    lengths = draw(st.lists(st.integers(0, 4), max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = rng.uniform(-1, 1, (6, first + width + 1)).astype(np.float32)
    places = rng.integers(0, 6, sum(lengths)).astype(np.int32)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    matrix = rng.uniform(-1, 1, (len(lengths), base + 4 * width + 2)).astype(np.float32)
    return rows, places, splits, first, width, base, matrix


def examples(places, splits):
    return [places[begin:end] for begin, end in pairwise(splits)]


@given(case=uses(), is_mean=st.booleans())
@settings(max_examples=60)
def test_sums_and_means_and_their_gradient(case, is_mean):
    rows, places, splits, first, width, base, matrix = case
    out, back = matrix.copy(), rows.copy()
    pooling.add_sums(rows, places, splits, is_mean, first, width, base, out)
    pooling.spread_sums(matrix, places, splits, is_mean, first, width, base, back)
    forward, backward = matrix.astype(np.float64), rows.astype(np.float64)
    for b, mine in enumerate(examples(places, splits)):
        for place in mine:
            share = 1 / len(mine) if is_mean else 1
            forward[b, base : base + width] += share * rows[place, first : first + width]
            backward[place, first : first + width] += share * matrix[b, base : base + width]
    np.testing.assert_allclose(out, forward, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(back, backward, rtol=1e-5, atol=1e-5)


@given(case=uses(), extra=st.integers(0, 2))
@settings(max_examples=60)
def test_sequences_and_their_gradient(case, extra):
    rows, places, splits, first, width, base, matrix = case
    stride = width
    matrix = np.concatenate([matrix, matrix[:, :extra]], axis=1)
    out, back = matrix.copy(), rows.copy()
    pooling.copy_first(rows, places, splits, stride, first, width, base, out)
    pooling.spread_first(matrix, places, splits, stride, first, width, base, back)
    forward, backward = matrix.copy(), rows.astype(np.float64)
    for b, mine in enumerate(examples(places, splits)):
        for j, place in enumerate(mine):
            at = slice(base + j * stride, base + j * stride + width)
            forward[b, at] = rows[place, first : first + width]
            backward[place, first : first + width] += matrix[b, at]
    np.testing.assert_array_equal(out, forward)
    np.testing.assert_allclose(back, backward, rtol=1e-5, atol=1e-5)


@given(case=uses(), is_zero=st.booleans())
@settings(max_examples=60)
def test_roots_of_squares_and_their_gradient(case, is_zero):
    rows, places, splits, first, width, base, matrix = case
    rows = rows * np.float32(not is_zero)
    out, back = matrix.copy(), rows.copy()
    pooling.add_roots(rows, places, splits, first, width, base, out)
    pooling.spread_roots(matrix, rows, places, splits, first, width, base, back)
    forward, backward = matrix.astype(np.float64), rows.astype(np.float64)
    for b, mine in enumerate(examples(places, splits)):
        used = rows[mine, first : first + width].astype(np.float64)
        roots = np.sqrt((used**2).sum(axis=0))
        forward[b, base : base + width] += roots
        slope = np.divide(
            matrix[b, base : base + width], roots, out=np.zeros(width), where=roots > 0
        )
        for place, row in zip(mine, used, strict=True):
            backward[place, first : first + width] += slope * row
    np.testing.assert_allclose(out, forward, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(back, backward, rtol=1e-4, atol=1e-4)


@given(case=uses(), most=st.integers(0, 3))
def test_marking_and_cutting(case, most):
    _, places, splits, *_ = case
    used = np.zeros(6, np.bool_)
    pooling.mark(places, used)
    np.testing.assert_array_equal(used, np.isin(np.arange(6), places))
    values = np.arange(places.size) * 7
    lengths = np.minimum(np.diff(splits), most)
    kept_splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    kept = np.full(kept_splits[-1], -1)
    pooling.cut(values, splits, kept_splits, kept)
    expected = [mine[:most] for mine in examples(values, splits)]
    assert kept.tolist() == [value for mine in expected for value in mine]


@pytest.mark.parametrize("is_mean", [False, True])
def test_no_examples_at_all(is_mean):
    nothing = np.empty((0, 2), np.float32)
    pooling.add_sums(
        np.ones((1, 2), np.float32),
        np.empty(0, np.int32),
        np.zeros(1, np.int64),
        is_mean,
        0,
        2,
        0,
        nothing,
    )
