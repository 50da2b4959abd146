"""Golden numbers of the optimizers, two steps each, and that a dumped and restored row goes on bit
by bit."""

import numpy as np
import pytest

from megalith.schema.optimizers import (
    Adadelta,
    Adam,
    Amsgrad,
    BatchSoftmax,
    Dc,
    DynamicWdAdagrad,
    Ftrl,
    GroupAdagrad,
    GroupFtrl,
    Momentum,
    MovingAverage,
    Rmsprop,
    RmspropV2,
)
from support.optimizer_rows import Rows, close


@pytest.mark.golden("FtrlOptimizer.Basic")
def test_ftrl_takes_two_steps_of_one_weight():
    rows = Rows(Ftrl(), 1)
    close(rows.apply([10]), [-0.009995])
    close(rows.apply([10]), [-0.0170643])


@pytest.mark.golden("FtrlOptimizer.ListUpdate")
def test_ftrl_takes_two_steps_of_two_weights_with_their_own_state():
    rows = Rows(Ftrl(), 2)
    close(rows.apply([10, 1]), [-0.009995, -0.00953463])
    close(rows.apply([10, 1]), [-0.0170643, -0.0164353])
    close(rows.dump()["norm"], [200.1, 2.1], atol=1e-4)
    close(rows.dump()["zero"], [24.138603, 2.3816986], atol=1e-5)


def test_ftrl_with_the_sign_bit_reproduces_monolith():
    config = Ftrl(
        l1_regularization_strength=1, l2_regularization_strength=0.5, beta=1, sign_bit_l1=True
    )
    close(Rows(config, 3).apply([10, -10, 0.5]), [-0.00908265, 0.00999092, 0])


def test_ftrl_shrinks_both_signs_alike():
    config = Ftrl(l1_regularization_strength=1, l2_regularization_strength=0.5, beta=1)
    up, down, dropped = Rows(config, 3).apply([10, -10, 0.5])[0]
    assert up == -down
    assert dropped == 0
    close([down], [0.01 * 9 / (np.sqrt(100.1) + 1 + 0.005)])


def test_group_ftrl_drops_or_shrinks_the_whole_group():
    rows = Rows(GroupFtrl(l1_regularization_strength=1), 2)
    close(rows.apply([3, 4]), [-0.006, -0.0064])
    close(rows.apply([3, 4]), [-0.01172769, -0.01240568])
    assert not Rows(GroupFtrl(l1_regularization_strength=6), 2).apply([3, 4]).any()


@pytest.mark.golden("GroupAdaGradOptimizer.Basic")
def test_group_adagrad_goes_on_from_a_restored_row():
    config = GroupAdagrad(beta=1, initial_accumulator_value=0, l2_regularization_strength=1)
    rows = Rows(config, 1)
    close(rows.apply([10]), [-0.008182])
    restored = Rows(config, 1, weights=rows.weights)
    restored.state[:] = rows.state
    close(restored.apply([10]), [-0.014125])


@pytest.mark.golden("GroupAdaGradOptimizer.ListUpdate")
def test_group_adagrad_shrinks_a_group_by_its_norm():
    rows = Rows(
        GroupAdagrad(beta=1, initial_accumulator_value=0, l2_regularization_strength=0.5), 2
    )
    close(rows.apply([10, 1]), [-0.008639, -0.000864])
    close(rows.apply([1, 5]), [-0.009096, -0.004778])


@pytest.mark.golden("GroupAdaGradOptimizer.ZeroLambda")
def test_group_adagrad_without_regularization_shrinks_nothing():
    rows = Rows(GroupAdagrad(beta=1, initial_accumulator_value=0), 2)
    close(rows.apply([10, 1]), [-0.009091, -0.000909])


@pytest.mark.golden("GroupAdaGradOptimizer.SetZero")
def test_group_adagrad_with_strong_regularization_drops_the_group():
    rows = Rows(
        GroupAdagrad(beta=1, initial_accumulator_value=0, l2_regularization_strength=1000), 2
    )
    np.testing.assert_array_equal(rows.apply([10, 1]), [[0, 0]])


def test_group_adagrad_of_nothing_stays_at_zero():
    np.testing.assert_array_equal(Rows(GroupAdagrad(), 2).apply([0, 0]), [[0, 0]])
    held = Rows(GroupAdagrad(initial_accumulator_value=0), 2, weights=5)
    np.testing.assert_array_equal(held.apply([0, 0]), [[5, 5]])


@pytest.mark.parametrize(
    "config", [Ftrl(), GroupFtrl(), GroupAdagrad()], ids=lambda config: config.name
)
def test_a_step_at_rate_zero_changes_nothing(config):
    rows = Rows(config, 2, weights=0.5)
    before = rows.values.copy()
    rows.apply([1, 2], lr=0)
    np.testing.assert_array_equal(rows.values, before)


@pytest.mark.golden("AdadeltaOptimizer.Basic", "AdadeltaOptimizer.ListUpdate")
@pytest.mark.parametrize("dim", [1, 2])
def test_adadelta_takes_two_steps(dim):
    rows = Rows(Adadelta(), dim)
    close(rows.apply([10, 1][:dim]), [-0.0031607, -0.0030151][:dim])
    close(rows.dump()["accum"], [10, 0.1][:dim], atol=1e-4)
    close(rows.apply([10, 1][:dim]), [-0.0064035, -0.0061047][:dim])


@pytest.mark.golden(
    "AdamOptimizer.Basic",
    "AdamOptimizer.ListUpdate",
    "AmsgradOptimizer.Basic",
    "AmsgradOptimizer.ListUpdate",
)
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("config", [Adam(), Amsgrad()], ids=["adam_optimizer", "amsgrad_optimizer"])
def test_adam_and_amsgrad_take_the_same_first_two_steps(config, dim):
    rows = Rows(config, dim)
    close(rows.apply([10, 1][:dim]), [-0.00990099, -0.00909091][:dim])
    close(rows.dump()["m"], [1, 0.1][:dim], atol=1e-4)
    close(rows.apply([10, 1][:dim]), [-0.01983060, -0.01842895][:dim])


@pytest.mark.parametrize(
    ("config", "expected"),
    [(Adam(), [-0.0275234, -0.02566129]), (Amsgrad(), [-0.02748511, -0.02562744])],
    ids=["adam", "amsgrad"],
)
def test_a_step_without_gradient_coasts(config, expected):
    rows = Rows(config, 2)
    rows.apply([10, 1])
    rows.apply([10, 1])
    close(rows.apply([0, 0]), expected)


def test_adam_nesterov():
    rows = Rows(Adam(use_nesterov=True), 1)
    close(rows.apply([10]), [-0.01881188])
    close(rows.apply([10]), [-0.03297463])


def test_adam_powers_count_the_updates_of_the_row():
    rows = Rows(Adam(), 2, count=2)
    rows.apply([[1, 1], [1, 1], [1, 1]], rows=[0, 0, 1])
    close(rows.dump()["beta1_power"], [0.9**3, 0.9**2])
    close(rows.dump()["beta2_power"], [0.99**3, 0.99**2])


@pytest.mark.golden("MomentumOptimizer.Basic", "MomentumOptimizer.ListUpdate")
@pytest.mark.parametrize("dim", [1, 2])
def test_momentum_takes_two_steps_of_which_the_second_is_longer(dim):
    rows = Rows(Momentum(), dim)
    close(rows.apply([10, 1][:dim]), [-0.1, -0.01][:dim])
    close(rows.dump()["n"], [-0.1, -0.01][:dim])
    close(rows.apply([10, 1][:dim]), [-0.29, -0.029][:dim])


def test_momentum_nesterov():
    rows = Rows(Momentum(use_nesterov=True), 1)
    close(rows.apply([10]), [-0.19])
    close(rows.dump()["n"], [-0.1])
    close(rows.apply([10]), [-0.461])
    close(rows.dump()["n"], [-0.19])


@pytest.mark.golden("MovingAverageOptimizer.Basic", "MovingAverageOptimizer.ListUpdate")
@pytest.mark.parametrize("dim", [1, 2])
def test_moving_average_takes_a_tenth_of_the_gradient_at_any_rate(dim):
    rows = Rows(MovingAverage(), dim)
    close(rows.apply([10, 1][:dim], lr=123), [1, 0.1][:dim])
    close(rows.apply([10, 1][:dim], lr=123), [1.9, 0.19][:dim])


@pytest.mark.golden("RmspropOptimizer.Basic")
def test_rmsprop_takes_two_steps():
    rows = Rows(Rmsprop(), 1)
    close(rows.apply([10]), [-0.024025])
    close(rows.dump()["n"], [10], atol=1e-4)
    close(rows.apply([10]), [-0.042686])


def test_rmsprop_follows_the_rate_of_the_step():
    np.testing.assert_array_equal(Rows(Rmsprop(), 1).apply([10], lr=0), [[0]])


@pytest.mark.golden("RmspropV2Optimizer.ListUpdate")
def test_rmsprop_v2_takes_two_steps():
    rows = Rows(RmspropV2(), 2)
    close(rows.apply([10, 1]), [-0.0090909, -0.005])
    close(rows.dump()["n"], [100, 1], atol=1e-4)
    close(rows.apply([10, 1]), [-0.0158549, -0.0092045])


@pytest.mark.golden("BatchSoftmaxOptimizer.Basic")
def test_batch_softmax_moves_by_its_rate_towards_the_gap_of_one_step():
    close(Rows(BatchSoftmax(), 1).apply([5], lr=0.1, step=1), [0.1])


@pytest.mark.golden("HashTableOpsTest.test_batch_softmax_optimizer")
def test_batch_softmax_estimates_how_often_a_row_is_sampled():
    rows = Rows(BatchSoftmax(), 1, count=2)
    for step in range(1000):
        seen = [row for row, every in ((0, 5), (1, 10)) if step % every == 0]
        if seen:
            rows.apply(np.zeros((len(seen), 1)), lr=0.1, step=step, rows=seen)
    close(1 / np.maximum(rows.weights, 1), [0.2, 0.1], atol=0.01)


@pytest.mark.parametrize("step", [0, 1, 2**24 - 1, 2**24, 2**31, 2**40 + 12345, 2**48 - 1])
def test_batch_softmax_keeps_any_step_exactly(step):
    rows = Rows(BatchSoftmax(), 1)
    rows.apply([0], step=step)
    np.testing.assert_array_equal(rows.dump()["last_step"], [step])
    rows.weights = 3.0
    close(rows.apply([0], lr=1, step=step), [0])


@pytest.mark.golden("AVX.Basic", "AVX.DecoupleWd")
@pytest.mark.parametrize("decoupled", [False, True], ids=["avx_basic", "avx_decouple_wd"])
def test_dynamic_wd_adagrad_is_the_same_at_every_width(decoupled):
    """Monolith's test compares its scalar with its vector loop.

    So a wide segment equals its columns.
    """
    config = DynamicWdAdagrad(
        initial_accumulator_value=1.0, weight_decay_factor=0.1, decouple_weight_decay=decoupled
    )
    rng = np.random.default_rng(7)
    gradients = rng.standard_normal((3, 13)).astype(np.float32)
    wide, narrow = Rows(config, 13), Rows(config, 1, count=13)
    for gradient in gradients:
        wide.apply(gradient, lr=0.1)
        narrow.apply(gradient[:, None], lr=0.1)
    close(wide.weights, narrow.weights)


def test_decoupled_weight_decay_stays_out_of_the_accumulator():
    config = DynamicWdAdagrad(
        initial_accumulator_value=1.0, weight_decay_factor=0.1, decouple_weight_decay=True
    )
    rows = Rows(config, 1, weights=0.5)
    close(rows.apply([1], lr=0.1), [0.5 - 0.1 / np.sqrt(2) - 0.1 * 0.1 * 0.5])
    close(rows.dump()["norm"], [2])


@pytest.mark.parametrize(
    ("flipped", "temperature", "scale"),
    [(False, 1, 9), (False, 2, 3), (True, 1, 1 / 9), (True, 2, 1 / 3)],
)
def test_dynamic_weight_decay_follows_the_gap_between_updates(flipped, temperature, scale):
    config = DynamicWdAdagrad(
        initial_accumulator_value=1.0,
        weight_decay_factor=0.01,
        decouple_weight_decay=True,
        enable_dynamic_wd=True,
        dynamic_wd_temperature=temperature,
        flip_direction=flipped,
    )
    rows = Rows(config, 1, weights=1.0)
    close(
        rows.apply([0], lr=0.1, step=1000), [1 - 0.1 * 0.01]
    )  # a first update decays once, at any step
    rows.weights = 1.0
    close(rows.apply([0], lr=0.1, step=1009), [1 - 0.1 * 0.01 * scale])
    np.testing.assert_array_equal(rows.dump()["last_update_step"], [1009])


def test_dynamic_weight_decay_after_a_long_gap_stops_at_zero():
    config = DynamicWdAdagrad(
        weight_decay_factor=0.1, decouple_weight_decay=True, enable_dynamic_wd=True
    )
    rows = Rows(config, 1, weights=1.0)
    rows.apply([0], lr=0.1, step=0)
    np.testing.assert_array_equal(rows.apply([0], lr=0.1, step=10**9), [[0]])


@pytest.mark.golden("DcOptimizer.Basic", "DcOptimizer.ListUpdate")
@pytest.mark.parametrize("dim", [1, 2])
def test_dc_corrects_the_gradient_by_the_weights_that_were_pulled(dim):
    rows = Rows(Dc(Adadelta(), 0.1), dim)
    close(rows.apply([10, 1][:dim], pulled=[0.1, 0.1][:dim]), [-0.0031603, -0.00301233][:dim])
    close(rows.dump()["accum"], [8.1, 0.09801][:dim], atol=1e-4)
    close(rows.apply([10, 1][:dim], pulled=[0, 0][:dim]), [-0.0065548, -0.00611400][:dim])


@pytest.mark.parametrize(
    "config",
    [
        DynamicWdAdagrad(weight_decay_factor=0.1, enable_dynamic_wd=True),
        Ftrl(beta=1.0, l1_regularization_strength=0.1),
        GroupFtrl(l1_regularization_strength=0.1),
        GroupAdagrad(l2_regularization_strength=0.1),
        Adadelta(),
        Adam(),
        Amsgrad(),
        Momentum(),
        MovingAverage(),
        Rmsprop(),
        RmspropV2(),
    ],
    ids=lambda config: config.name,
)
def test_a_restored_row_continues_bit_by_bit(config):
    rng = np.random.default_rng(3)
    original = Rows(config, 5, count=4, weights=rng.standard_normal((4, 5)))
    original.apply(rng.standard_normal((4, 5)), step=10)
    copy = Rows(config, 5, count=4, weights=original.weights)
    copy.state[:] = original.state
    gradients = rng.standard_normal((4, 5))
    np.testing.assert_array_equal(
        copy.apply(gradients, step=20), original.apply(gradients, step=20)
    )
    np.testing.assert_array_equal(copy.state, original.state)
