"""Golden numbers of the dense optimizers, and naive twins on random shapes, settings and steps."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.engine.variable.optimizer import dense_state
from megalith.engine.variable.shampoo import inverse_root
from megalith.engine.variable.variable import UpdateKind, Variable
from megalith.errors import InvalidRequest
from megalith.schema import (
    Adagrad,
    Adam,
    Adamom,
    Constant,
    DenseRmsprop,
    DenseRmspropV2,
    Momentum,
    PolynomialDecay,
    Sgd,
    Shampoo,
    VariableConfig,
)
from support.twins import dense_optimizers

ELEMENTWISE = [
    Sgd(0.05),
    Momentum(0.05, weight_decay_factor=0.1),
    Momentum(0.05, use_nesterov=True, momentum=0.5),
    Adagrad(0.05, weight_decay_factor=0.2),
    Adam(0.05, weight_decay_factor=0.1),
    Adam(0.05, use_nesterov=True, beta2=0.9),
    Adamom(0.05, ada_decay=0.99, mom_decay=0.9, weight_decay=0.01),
    DenseRmsprop(0.05, beta1=0.8, beta2=0.9, epsilon=0.1, weight_decay=0.3),
    DenseRmspropV2(0.05, beta1=0.8, beta2=0.9, epsilon=0.1, weight_decay=0.3),
]


def variable(value, optimizer, schedule=None):
    return Variable(VariableConfig("v", np.array(value, np.float32), optimizer, schedule))


def apply(held, gradient, step=0):
    held.apply(UpdateKind.GRADIENT, np.asarray(gradient, np.float32), step)
    return held.read()


def close(actual, expected, atol=1e-8):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def state(held):
    return held.dump()[1]


@pytest.mark.golden("G3")
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (4, 1, 2)])
def test_adamom_moves_a_variable_by_its_golden_numbers(shape):
    config = Adamom(0.1, ada_decay=0.99, mom_decay=0.9, weight_decay=0.01)
    held = variable(np.full(shape, 0.1), config)
    close(apply(held, np.full(shape, 0.12)), np.full(shape, 0.090000336))
    close(state(held)["m"], 0.0121)
    close(state(held)["v"], 0.014641)
    close(state(held)["c"], 1.0)
    close(apply(held, np.full(shape, 0.12)), 0.07100136, atol=1e-7)
    close(state(held)["m"], 0.02298)
    close(state(held)["v"], 0.0291114)
    close(state(held)["c"], 1.99, atol=1e-6)


@pytest.mark.golden("G4")
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_dense_rmsprop_moves_a_variable_by_its_golden_numbers(shape):
    config = DenseRmsprop(0.1, beta1=0.9, beta2=0.9, epsilon=0.1, weight_decay=1)
    held = variable(np.full(shape, 0.1), config)
    close(apply(held, np.full(shape, 0.12)), np.full(shape, 0.03205473846225154))
    close(state(held)["m"], 0.06794526153774846)
    close(state(held)["v"], 0.00484)


@pytest.mark.golden("G5")
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_dense_rmsprop_v2_moves_a_variable_by_its_golden_numbers(shape):
    config = DenseRmspropV2(0.1, beta1=0.9, beta2=0.9, epsilon=0.1, weight_decay=1)
    held = variable(np.full(shape, 0.1), config)
    close(apply(held, np.full(shape, 0.12)), np.full(shape, 0.03125))
    close(state(held)["m"], 0.06875)
    close(state(held)["v"], 0.0484)


@pytest.mark.golden(
    "SgdOptimizer.Basic",
    "AdagradOptimizer.Basic",
    "MomentumOptimizer.ListUpdate",
    "AdamOptimizer.ListUpdate",
)
def test_sgd_adagrad_momentum_and_adam_move_a_variable_as_they_move_a_row():
    """A variable moves as a row does."""
    close(apply(variable([0.0], Sgd(0.1)), [1]), [-0.1])
    close(apply(variable([0, 0], Adagrad(0.1, 1.0)), [1, 2]), [-0.07071067, -0.08944272], 1e-7)
    held = variable([0, 0], Momentum(0.01))
    close(apply(held, [10, 1]), [-0.1, -0.01], 1e-7)
    close(apply(held, [10, 1]), [-0.29, -0.029], 1e-7)
    held = variable([0, 0], Adam(0.01))
    close(apply(held, [10, 1]), [-0.00990099, -0.00909091], 1e-7)
    close(apply(held, [10, 1]), [-0.01983060, -0.01842895], 1e-7)
    close(apply(held, [0, 0]), [-0.0275234, -0.02566129], 1e-7)


@pytest.mark.golden("PolynomialDecayTest.test_dense_optimizer")
def test_three_adagrad_updates_of_variables_at_the_rate_of_step_0():
    """The step stays 0, so the rate stays 3."""
    schedule = PolynomialDecay(3.0, 10, 11.0)
    first, second = (variable(value, Adagrad(), schedule) for value in ([1, 2], [3, 4]))
    for _ in range(3):
        apply(first, [0.1, 0.1])
        apply(second, [0.01, 0.01])
    close(first.read(), [-1.60260987, -0.60260987], 1e-6)
    close(second.read(), [2.71567917, 3.71567917], 1e-6)


def test_the_rate_follows_the_schedule_and_the_step_of_the_push():
    held = variable([0.0], Sgd(1.0), PolynomialDecay(0.01, 10, 0.11))
    close(apply(held, [1], step=1), [-0.02], 1e-7)
    close(apply(held, [1], step=2), [-0.05], 1e-7)
    warming = variable([0.0], Sgd(1.0, warmup_steps=4))
    assert apply(warming, [1], step=0).tolist() == [0.0]
    assert apply(warming, [1], step=2).tolist() == [-0.5]
    assert apply(variable([0.0], Sgd(1.0), Constant(2.0)), [1]).tolist() == [-2.0]
    with pytest.raises(InvalidRequest, match="step -1"):
        apply(warming, [1], step=-1)


def test_derived_shampoo_steps():
    """Constant gradient, every step refreshes."""
    held = variable(np.zeros((2, 2)), Shampoo(0.03, warmup=2, tau_1=1, tau_2=1))
    expected = [
        [-0.003] * 4,
        [-0.00782132] * 4,
        [-0.01389256] * 4,
        [-0.01484105, -0.02159723, -0.02159723, -0.01990819],
        [-0.00930444, -0.03082492, -0.03082492, -0.0254448],
        [-0.00343035, -0.04061506, -0.04061506, -0.03131888],
    ]
    for step, value in enumerate(expected):
        close(apply(held, [[1, 2], [3, 4]], step).ravel(), value, 2e-7)


@settings(max_examples=40)
@given(
    config=st.sampled_from(ELEMENTWISE),
    shape=st.lists(st.integers(1, 7), max_size=3),
    steps=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_elementwise_optimizers_agree_with_their_twins(config, shape, steps, seed):
    rng = np.random.default_rng(seed)
    initial = rng.uniform(-0.5, 0.5, shape).astype(np.float32)
    held = variable(initial, config)
    value, fields = (
        np.float64(initial),
        {name: np.float64(field) for name, field in state(held).items()},
    )
    twin = getattr(dense_optimizers, config.name)
    for step in range(steps):
        gradient = rng.uniform(-1, 1, shape).astype(np.float32)
        apply(held, gradient, step)
        value, fields = twin(config, value, fields, np.float64(gradient), 0.05, step)
    np.testing.assert_allclose(held.read(), value, rtol=2e-5, atol=2e-6)
    assert set(state(held)) == set(fields)
    for name, field in state(held).items():
        np.testing.assert_allclose(field, fields[name], rtol=2e-5, atol=2e-6, err_msg=name)


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    beta_2=st.sampled_from([1.0, 0.9]),
    taus=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 2**32 - 1),
)
def test_shampoo_agrees_with_its_twin(shape, beta_2, taus, seed):
    rng = np.random.default_rng(seed)
    config = Shampoo(0.03, beta_2=beta_2, warmup=3, tau_1=taus[0], tau_2=taus[1])
    initial = rng.uniform(-0.5, 0.5, shape).astype(np.float32)
    held, twin = variable(initial, config), dense_optimizers.Shampoo(config, initial)
    for step in range(9):
        gradient = rng.uniform(0.5, 1, shape).astype(np.float32)
        apply(held, gradient, step)
        twin.step(np.float64(gradient), 0.03, step)
    np.testing.assert_allclose(held.read(), twin.value, rtol=2e-3, atol=2e-4)


@settings(max_examples=50)
@given(
    head=st.integers(0, 4),
    tail=st.integers(0, 4),
    below=st.integers(0, 5),
    power=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_inverse_roots_keep_the_ends_of_the_spectrum_as_their_twin_does(
    head, tail, below, power, seed
):
    """Well separated eigenvalues, some of them below the damping."""
    turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6)))
    eigenvalues = np.sort(np.r_[np.linspace(1e-4, 5e-4, below), np.linspace(1, 9, 6 - below)])
    matrix = (turn * eigenvalues) @ turn.T
    vectors, values, offset = inverse_root(matrix, power, head, tail, 1e-3)
    expected = dense_optimizers.inverse_root(
        matrix, power, SimpleNamespace(eigen_head=head, eigen_tail=tail, damping_epsilon=1e-3)
    )
    np.testing.assert_allclose(
        (vectors * values) @ vectors.T + offset * np.eye(6), expected, atol=1e-6
    )


def test_shampoo_refreshes_at_the_first_step_beyond_a_multiple_that_no_push_named():
    config = Shampoo(0.03, warmup=1, tau_1=10, tau_2=10)
    held = variable(np.zeros((2, 2)), config)
    gradient = np.array([[1, 2], [3, 4]], np.float32)
    apply(held, gradient, 7)
    assert state(held)["s_0"].any()
    assert state(held)["pval_0"].any()
    before = state(held)["pval_0"].copy()
    apply(held, gradient, 9)
    np.testing.assert_array_equal(state(held)["pval_0"], before)
    apply(held, gradient, 12)
    assert (state(held)["pval_0"] != before).all()
    assert state(held)["last_step"] == 12
    apply(held, gradient, 11)  # of a slow worker
    assert state(held)["last_step"] == 12


def test_shampoo_survives_gradients_whose_squares_are_infinite():
    held = variable(np.zeros((2, 2)), Shampoo(0.03, warmup=1, tau_1=1, tau_2=1))
    for step in range(4):
        apply(held, np.full((2, 2), 3e38), step)
    assert np.isfinite(held.read()).all()


@pytest.mark.parametrize(
    "config", [*ELEMENTWISE, Shampoo(warmup=1, tau_1=1, tau_2=1)], ids=lambda config: config.name
)
def test_a_dumped_and_loaded_variable_goes_on_bit_by_bit(config):
    rng = np.random.default_rng(0)
    initial = rng.standard_normal((3, 2)).astype(np.float32)
    source = variable(initial, config)
    for step in range(4):
        apply(source, rng.standard_normal((3, 2)), step)
    target = variable(np.zeros((3, 2)), config)
    target.load(*source.dump())
    gradient = rng.standard_normal((3, 2))
    np.testing.assert_array_equal(apply(source, gradient, 4), apply(target, gradient, 4))
    for name, field in state(source).items():
        np.testing.assert_array_equal(state(target)[name], field)


@pytest.mark.parametrize("config", ELEMENTWISE, ids=lambda config: config.name)
def test_rows_move_the_same_in_parts_as_in_the_whole(config):
    rng = np.random.default_rng(1)
    initial = rng.standard_normal((40, 1000)).astype(np.float32)
    whole = variable(initial, config)
    parts = [Variable(part) for part in VariableConfig("v", initial, config).split(3)]
    assert len(parts) == 2
    for step in range(3):
        gradient = rng.standard_normal(initial.shape).astype(np.float32)
        apply(whole, gradient, step)
        for part in parts:
            apply(part, gradient[part.config.part.start : part.config.part.stop], step)
    np.testing.assert_array_equal(np.concatenate([part.read() for part in parts]), whole.read())


def test_new_settings_hold_from_the_next_step_on():
    held = variable([0.0], Momentum(1.0, momentum=0.0))
    apply(held, [1])
    held.reconfigure(VariableConfig("v", np.zeros(1, np.float32), Momentum(2.0, momentum=0.5)))
    close(apply(held, [1]), [-1 - 2.5])


def test_a_state_takes_no_gradient_of_another_kind():
    gradient = np.zeros(1, np.float32)
    for optimizer in (None, Shampoo()):
        with pytest.raises(InvalidRequest):
            dense_state(optimizer, gradient).step(Sgd(), gradient, np.float32(1), 0)
    with pytest.raises(InvalidRequest):
        dense_state(Sgd(), gradient).step(Shampoo(), gradient, np.float32(1), 0)
