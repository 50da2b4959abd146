import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.engine.segments.optimizer import row_optimizer
from megalith.engine.segments.retriever import (
    FakeQuantRetriever,
    HashNetRetriever,
    RawRetriever,
    retriever_for,
)
from megalith.errors import InvalidSetting
from megalith.schema.compressors import FixedR8, Fp16, Fp32, OneBit
from megalith.schema.optimizers import Dc, Sgd
from support.twins.codecs import fixed_r8


def four_ulp(actual, expected):
    np.testing.assert_array_max_ulp(np.float32(actual), np.float32(expected), maxulp=4)


def shown(retriever, weights):
    out = np.array([weights], np.float32)
    retriever.forward(out, 0, out.shape[1])
    return out[0]


def passed(config, weight, gradient, step, retriever=None):
    """The gradient that reaches one weight: what the stages before the optimizer leave of it."""
    values, grads = np.float32([weight]), np.float32([[gradient]])
    row = row_optimizer(Sgd(), 1, config)
    for stage in row.stages[:-1]:
        stage.apply(
            values, np.zeros(1, np.int64), 0, 1, grads, 0, 1, np.float32(1), stage.params, step
        )
    if retriever is not None:
        retriever.advance(step)
    return grads[0, 0]


def test_the_compressor_decides_the_retriever():
    assert isinstance(retriever_for(Fp32()), RawRetriever)
    assert isinstance(retriever_for(Fp16()), RawRetriever)
    assert isinstance(retriever_for(FixedR8()), FakeQuantRetriever)
    assert isinstance(retriever_for(OneBit()), HashNetRetriever)


@pytest.mark.golden("RawRetriever.Basic")
def test_without_rounding_lookups_show_the_weights_themselves():
    weights = np.random.default_rng(0).standard_normal(10).astype(np.float32)
    np.testing.assert_array_equal(shown(retriever_for(Fp16()), weights), weights)
    assert passed(Fp16(), 0.3, 5, 1) == 5


@pytest.mark.golden("FakeQuantRetriever.Basic")
def test_fixed_r8_lookups_are_within_a_step_and_gradients_pass():
    weights = np.random.default_rng(0).uniform(-1, 0.99, 1000).astype(np.float32)
    seen = shown(retriever_for(FixedR8(1.0)), weights)
    assert np.abs(seen - weights).max() <= 1 / 128
    assert len(np.unique(seen)) <= 256
    assert passed(FixedR8(1.0), 0.3, 5, 1) == 5


@pytest.mark.golden("CombinedRetriever.Basic")
def test_two_retrievers_of_a_row_round_their_own_columns_only():
    weights = np.random.default_rng(0).uniform(-0.9, 0.9, (1, 30)).astype(np.float32)
    out = weights.copy()
    retriever_for(Fp32()).forward(out, 0, 10)
    retriever_for(FixedR8(1.0)).forward(out, 10, 20)
    np.testing.assert_array_equal(out[:, :10], weights[:, :10])
    np.testing.assert_array_equal(out[:, 10:], fixed_r8(weights[:, 10:], 1.0) / np.float32(128))
    assert (out[:, 10:] != weights[:, 10:]).any()


@pytest.mark.golden("QuantizedEntryAccessor.FixedRange")
def test_a_weight_beyond_the_range_of_fixed_r8_is_shown_at_its_end():
    assert abs(shown(retriever_for(FixedR8(1.0)), [1])[0] - 1) <= 1 / 128
    assert abs(shown(retriever_for(FixedR8(0.5)), [1])[0] - 0.5) <= 0.5 / 128
    assert shown(retriever_for(FixedR8(1.0)), [0])[0] == 0


@pytest.mark.golden("HashNetQuantizer.ForwardAndBackward")
def test_hash_net_shows_a_tanh_and_passes_its_derivative():
    config = OneBit(step_size=1000, init_scale=1.0, amplitude=0.1)
    net = HashNetRetriever(config)
    four_ulp(shown(net, [1, 2]), [0.07615941, 0.09640275])
    four_ulp(passed(config, 2, 1, step=0, retriever=net), 0.00706508)
    four_ulp(passed(config, 2, 2, step=999, retriever=net), 0.01413016)
    four_ulp(passed(config, 2, 100, step=1000, retriever=net), 0.005442613)
    four_ulp(passed(config, 2, 200, step=1001, retriever=net), 0.01088523)
    four_ulp(shown(net, [2]), [0.09998888])
    four_ulp(net.scale, 2.44948974)


@pytest.mark.golden("HashNetRetriever.Basic")
def test_hash_net_gets_steeper_at_its_first_stair():
    config = OneBit(step_size=100, init_scale=1.0, amplitude=0.1)
    net = HashNetRetriever(config)
    four_ulp(passed(config, 1, 1, step=100, retriever=net), 0.35840667 * 0.1)
    four_ulp(net.scale, np.sqrt(1.5))


@pytest.mark.parametrize(
    ("step", "scale"), [(0, 1), (999, 1), (1000, np.sqrt(6)), (1999, np.sqrt(6)), (10**9, 3)]
)
def test_the_scale_needs_no_update_at_exactly_the_stair_and_stops_at_its_maximum(step, scale):
    net = HashNetRetriever(OneBit(step_size=1000, max_scale=3.0))
    net.advance(step)
    four_ulp(net.scale, scale)


@given(
    rows=st.lists(st.integers(-1, 3), max_size=8),
    dim=st.integers(1, 19),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_the_derivative_does_what_the_formula_says(rows, dim, seed):
    rng = np.random.default_rng(seed)
    width, w, g = dim + 5, 2, 1
    values = rng.uniform(-2, 2, 4 * width).astype(np.float32)
    grads = rng.uniform(-1, 1, (len(rows), dim + 3)).astype(np.float32)
    starts = np.array([row * width if row >= 0 else -1 for row in rows], np.int64)
    expected = grads.astype(np.float64)
    derivative = row_optimizer(Sgd(), dim, OneBit()).stages[0]
    derivative.apply(values, starts, w, 0, grads, g, dim, np.float32(1), derivative.params, 0)
    for i, row in enumerate(rows):
        if row >= 0:
            weights = values[row * width + w : row * width + w + dim].astype(np.float64)
            expected[i, g : g + dim] *= 0.1 * (1 - np.tanh(weights) ** 2)
    np.testing.assert_allclose(grads, expected, rtol=1e-4, atol=1e-7)


@given(
    rows=st.integers(0, 5),
    dim=st.integers(1, 19),
    column=st.integers(0, 4),
    step=st.integers(0, 10**7),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
@pytest.mark.parametrize(
    "config", [FixedR8(0.5), OneBit(step_size=300)], ids=lambda config: config.name
)
def test_lookups_show_what_the_formula_says_in_their_columns_only(
    config, rows, dim, column, step, seed
):
    stored = np.random.default_rng(seed).uniform(-1, 1, (rows, column + dim + 2)).astype(np.float32)
    out, retriever, mine = stored.copy(), retriever_for(config), slice(column, column + dim)
    retriever.advance(step)
    retriever.forward(out, column, dim)
    if isinstance(config, FixedR8):
        expected = fixed_r8(stored[:, mine], 0.5) * np.float32(0.5 / 128)
    else:
        scale = min(np.sqrt(1 + 0.005 * (step // 300 * 300)), 10000)
        expected = 0.1 * np.tanh(scale * stored[:, mine].astype(np.float64))
    np.testing.assert_allclose(out[:, mine], expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.delete(out, mine, axis=1), np.delete(stored, mine, axis=1))


@pytest.mark.parametrize("config", [FixedR8(), OneBit()], ids=lambda config: config.name)
def test_an_empty_lookup_is_fine(config):
    retriever_for(config).forward(np.empty((0, 4), np.float32), 0, 4)


def test_pulled_weights_that_are_not_the_stored_ones_cannot_be_compensated():
    with pytest.raises(InvalidSetting, match=r"dc\(sgd\): pulled weights of one_bit segments"):
        row_optimizer(Dc(Sgd()), 4, OneBit())
    assert row_optimizer(Dc(Sgd()), 4, Fp16()).takes_pulled
