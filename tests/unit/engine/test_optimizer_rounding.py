"""Stochastic rounding to binary16 and delay compensation: what wraps another optimizer."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.engine.kernels.optimizers.rounding import rounded
from megalith.engine.segments.optimizer import row_optimizer
from megalith.errors import ShapeMismatch
from megalith.schema.optimizers import (
    Adadelta,
    BatchSoftmax,
    Dc,
    Momentum,
    MovingAverage,
    Sgd,
    StochasticRoundingFloat16,
)
from support.optimizer_rows import COUNT, Rows, calls, close
from support.twins.codecs import GOLDEN, mix
from support.twins.optimizers import half_candidates, multiply_with_carry


@numba.njit
def round_all(values, bits, p, out):
    for i in range(values.size):
        out[i] = rounded(values[i], bits[i], p[i])


def rounded_with(values, p):
    values = np.atleast_1d(np.asarray(values, np.float32))
    out = np.empty_like(values)
    round_all(
        values, values.view(np.uint32), np.broadcast_to(np.float32(p), values.shape).copy(), out
    )
    return out


@pytest.mark.golden("StochasticRoundingFloat16OptimizerDecorator.Basic")
def test_stochastic_rounding_stores_halves_near_the_plain_result():
    """Monolith only checks that the flag changes the object.

    Here, that it changes what is stored.
    """
    plain, wrapped = Rows(MovingAverage(), 3), Rows(StochasticRoundingFloat16(MovingAverage()), 3)
    assert wrapped.optimizer.name == "stochastic_rounding_float16(moving_average)"
    values = plain.apply([0.1, -0.3, 7.7])
    halves = wrapped.apply([0.1, -0.3, 7.7])
    np.testing.assert_array_equal(halves, halves.astype(np.float16).astype(np.float32))
    close(halves, values, atol=1e-3)
    assert not np.array_equal(halves, values)


def test_the_first_random_numbers_of_monolith_round_as_written_down():
    p = multiply_with_carry(6)
    close(p, [4.19095e-6, 0.0754371, 0.2328169, 0.2438792, 0.2384898, 0.1837266], atol=1e-7)
    np.testing.assert_array_equal(rounded_with(-0.1, p[0]), np.float32([-0.099975586]))
    np.testing.assert_array_equal(rounded_with(-0.1, 0.59), np.float32([-0.099975586]))
    np.testing.assert_array_equal(rounded_with(-0.1, 0.61), np.float32([-0.10003662]))


@given(value=st.floats(-65504, 65504, width=32), p=st.floats(0, 1, exclude_max=True, width=32))
@settings(max_examples=500)
def test_a_weight_goes_to_one_of_its_two_halves(value, p):
    below, above = half_candidates(np.float32(value))
    if below == above:
        expected = value
    else:
        share = (np.float64(value) - below) / (np.float64(above) - below)
        expected = above if p <= share else below
    np.testing.assert_array_equal(rounded_with(value, p), np.float32([expected]))


def test_beyond_the_halves_and_outside_the_numbers():
    values = [65505, 1e30, -65519, -1e30, np.inf, -np.inf, np.nan]
    expected = np.float32([65504, 65504, -65504, -65504, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(rounded_with(values, 0.0), expected)


@given(call=calls())
@settings(max_examples=40)
def test_a_call_rounds_every_weight_by_the_draw_of_its_place_step_and_number(call):
    """Draws in Python integers, halves by NumPy: what the stage leaves of weights that the
    optimizer does not move."""
    dim, batches, seed = call
    rows = Rows(StochasticRoundingFloat16(Sgd()), dim, count=COUNT)
    rows.weights = np.random.default_rng(seed).uniform(-2, 2, (COUNT, dim))
    for number, batch in enumerate(batches):
        expected = rows.weights.copy()
        salt = mix(number + GOLDEN * 7)
        for row in {*batch} - {-1}:
            for j in range(dim):
                place = row * rows.width + rows.w + j
                p = np.float32((mix(salt + GOLDEN * place) >> 40) * 2.0**-24)
                below, above = half_candidates(expected[row, j])
                if below != above:
                    share = (expected[row, j] - below) / (above - below)
                    expected[row, j] = above if p <= share else below
        rows.apply(np.zeros((len(batch), dim)), lr=1, step=7, rows=batch)
        np.testing.assert_array_equal(rows.weights, expected)


@given(call=calls(), strength=st.floats(0, 2, width=32))
@settings(max_examples=40)
def test_delay_compensation_does_what_its_formula_says(call, strength):
    """With sgd at rate 1 the step is the compensated gradient.

    Equal ids see the weights before the call.
    """
    dim, batches, seed = call
    rng = np.random.default_rng(seed)
    rows = Rows(Dc(Sgd(), strength), dim, count=COUNT, weights=rng.uniform(-1, 1, (COUNT, dim)))
    for batch in batches:
        grads, pulled = (rng.uniform(-1, 1, (len(batch), dim)).astype(np.float32) for _ in range(2))
        before = rows.weights.astype(np.float64)
        expected = before.copy()
        for row, g, old in zip(batch, grads, pulled, strict=True):
            if row >= 0:
                expected[row] -= g + strength * g * g * (before[row] - old)
        rows.apply(grads.reshape(-1, dim), lr=1, rows=batch, pulled=pulled.reshape(-1, dim))
        np.testing.assert_allclose(rows.weights, expected, rtol=1e-4, atol=1e-4)


def test_rounding_is_unbiased():
    """10000 weights at a third of the way between two halves: a third of them goes up, 5 standard
    deviations wide."""
    third = 1 + 2**-10 / 3
    rows = Rows(StochasticRoundingFloat16(MovingAverage(momentum=0.0)), 100, count=100)
    weights = rows.apply(np.full((100, 100), third))
    assert set(np.unique(weights)) == {np.float32(1), np.float32(1 + 2**-10)}
    assert abs((weights > 1).mean() - 1 / 3) < 5 * np.sqrt(2 / 9 / 10000)


def test_small_steps_add_up_even_when_the_step_number_stands_still():
    """A step of 1/50 of the spacing is lost by nearest rounding; on average it must not be."""
    rows = Rows(StochasticRoundingFloat16(Momentum(momentum=0.0)), 64, count=16, weights=1.0)
    for _ in range(500):
        rows.apply(np.full((16, 64), -(2.0**-10) / 50), lr=1.0, step=0)
    np.testing.assert_allclose(rows.weights.mean(), 1 + 10 * 2**-10, atol=2**-10)


def test_rounding_leaves_the_rest_of_the_row_and_skipped_rows_alone():
    rows = Rows(StochasticRoundingFloat16(Momentum()), 2, count=2, weights=0.1)
    padding = rows.padding().copy()
    rows.apply([[1, 1], [1, 1]], rows=[1, -1])
    np.testing.assert_array_equal(rows.padding(), padding)
    np.testing.assert_array_equal(rows.weights[0], np.float32([0.1, 0.1]))
    close(rows.dump()["n"][1], [-0.01, -0.01])


def test_wrappers_forward_the_step():
    rows = Rows(StochasticRoundingFloat16(BatchSoftmax()), 1)
    close(rows.apply([0], lr=1, step=5), [5])


def test_wrappers_nest():
    rows = Rows(StochasticRoundingFloat16(Dc(Adadelta(), 0.1)), 2)
    close(rows.apply([10, 1], pulled=[0.1, 0.1]), [-0.0031603, -0.00301233], atol=1e-5)
    assert rows.optimizer.takes_pulled


def test_dc_without_the_pulled_weights_is_refused_and_changes_nothing():
    optimizer = row_optimizer(Dc(Adadelta()), 2)
    values = np.zeros(6, np.float32)
    for columns in (2, 3):
        grads = np.ones((1, columns), np.float32)
        with pytest.raises(ShapeMismatch, match=f"{columns} columns"):
            optimizer.apply(values, np.zeros(1, np.int64), 0, 2, grads, 0, 2, np.float32(0.1), 0)
    assert not values.any()
