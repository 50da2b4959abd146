from typing import get_args

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.engine.kernels.initialize import uniform
from megalith.engine.segments.initializer import row_initializer
from megalith.errors import InvalidSetting
from megalith.schema.checks import build_named
from megalith.schema.initializers import (
    Constants,
    Initializer,
    Ones,
    RandomUniform,
    Zeros,
)
from support.twins.codecs import scale_draw, uniform_row


def fill(config, keys, dim=4, w=0, seed=0, width=None, rows=None):
    """The values of rows that start at 777, one per key, after the initializer."""
    keys = np.asarray(keys, np.int64)
    width = width or w + dim
    rows = np.arange(len(keys)) if rows is None else np.asarray(rows, np.int64)
    values = np.full(len(keys) * width, 777, np.float32)
    starts = np.where(rows < 0, -1, rows * width).astype(np.int64)
    initializer = row_initializer(config, dim)
    initializer.fill(values, starts, w, dim, keys, seed, initializer.params)
    return values.reshape(len(keys), width)


@numba.njit
def scale_all(draws, minval, maxval, last, out):
    for i in range(draws.size):
        out[i] = uniform(draws[i], minval, maxval, last)


@pytest.mark.parametrize(
    ("config", "value"), [(Zeros(), 0), (Ones(), 1), (Constants(), 0), (Constants(2.5), 2.5)]
)
def test_constant_initializers(config, value):
    assert row_initializer(config, 4) == value


@pytest.mark.golden("RandomUniformInitializer.Basic")
def test_a_thousand_random_uniform_values_fill_their_range():
    values = fill(RandomUniform(-1, 1), [1], dim=1000)
    assert values.max() > 0.9
    assert values.min() < -0.9
    assert values.max() < 1
    assert values.min() >= -1


def test_draws_of_monolith_become_its_numbers():
    draws = np.array([3499211612, 581869302, 3890346734, 3586334585, 545404204], np.uint64)
    out = np.empty(5, np.float32)
    for bound, expected in (
        (0.05, [0.031472366, -0.0364523, 0.040579196, 0.033500854, -0.037301317]),
        (1, [0.62944734, -0.729046, 0.8115839, 0.6700171, -0.7460264]),
    ):
        low, high = np.float32(-bound), np.float32(bound)
        scale_all(draws, low, high, np.nextafter(high, low), out)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-7)
        np.testing.assert_allclose(
            out, [scale_draw(draw, low, high) for draw in draws], rtol=0, atol=1e-7
        )


def test_the_largest_draw_stays_below_maxval():
    out = np.empty(1, np.float32)
    low, high = np.float32(-0.05), np.float32(0.05)
    scale_all(np.array([2**32 - 1], np.uint64), low, high, np.nextafter(high, low), out)
    assert out[0] < high
    assert row_initializer(RandomUniform(-0.05, 0.05), 1).params.tolist() == [
        low,
        high,
        np.nextafter(high, low),
    ]


def test_equal_bounds_give_that_value():
    np.testing.assert_array_equal(
        fill(RandomUniform(0.3, 0.3), [1, 2]), np.full((2, 4), 0.3, np.float32)
    )


def test_a_row_starts_the_same_whatever_stands_beside_it():
    together = fill(RandomUniform(), [7, 8, 9])
    np.testing.assert_array_equal(together[::-1], fill(RandomUniform(), [9, 8, 7]))
    np.testing.assert_array_equal(together[1:2], fill(RandomUniform(), [8]))


def test_another_seed_id_or_place_gives_other_numbers():
    base = fill(RandomUniform(), [7])
    assert not np.intersect1d(base, fill(RandomUniform(), [7], seed=1)).size
    assert not np.intersect1d(base, fill(RandomUniform(), [8])).size
    assert not np.intersect1d(base, fill(RandomUniform(), [7], w=4)[:, 4:]).size


def test_patterned_ids_start_uniformly():
    """Ids with the slot in the high bits: mean and variance of 160000 numbers, 5 standard
    deviations wide."""
    keys = (np.arange(10000, dtype=np.int64) % 10 << 48) + np.arange(10000) * 1024
    values = fill(RandomUniform(-1, 1), keys, dim=16).astype(np.float64)
    assert abs(values.mean()) < 5 * np.sqrt(1 / 3 / values.size)
    assert abs(values.var() - 1 / 3) < 5 * np.sqrt(4 / 45 / values.size)
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 5 / np.sqrt(len(keys))


@given(
    keys=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8),
    dim=st.integers(1, 19),
    w=st.integers(0, 5),
    seed=st.integers(0, 2**63 - 1),
    skipped=st.integers(0, 8),
)
@settings(max_examples=60)
def test_the_kernel_does_what_its_twin_does(keys, dim, w, seed, skipped):
    rows = [-1 if row == skipped else row for row in range(len(keys))]
    values = fill(RandomUniform(-0.5, 2), keys, dim, w, seed, width=w + dim + 1, rows=rows)
    for row, key, actual in zip(rows, keys, values, strict=True):
        assert (actual[:w] == 777).all()
        assert actual[-1] == 777
        expected = np.full(dim, 777) if row < 0 else uniform_row(key, seed, w, dim, -0.5, 2)
        np.testing.assert_allclose(actual[w:-1], expected, rtol=0, atol=2e-7)


def initializer_named(name, **settings):
    return build_named("initializer", get_args(Initializer), name, settings)


def test_initializers_by_name():
    assert initializer_named("random_uniform", minval=-1, maxval=1) == RandomUniform(-1, 1)
    assert initializer_named("zeros") == Zeros()
    with pytest.raises(
        InvalidSetting, match="unknown initializer 'xavier'; known are constants, ones"
    ):
        initializer_named("xavier")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RandomUniform(1, -1), "minval 1 and maxval -1"),
        (lambda: RandomUniform(float("nan"), 1), "minval nan is not finite"),
        (lambda: Constants(float("inf")), "constant inf is not finite"),
        (lambda: Constants(1e300), "does not fit float32"),
        (lambda: row_initializer(Zeros(), 0), "segment of 0 floats"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(InvalidSetting, match=message):
        build()
