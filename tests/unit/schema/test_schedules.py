import numpy as np
import pytest

from megalith.errors import InvalidSetting
from megalith.schema.optimizers import (
    Adagrad,
    Adam,
    Dc,
    MovingAverage,
    Sgd,
    StochasticRoundingFloat16,
)
from megalith.schema.schedules import (
    Constant,
    LinearWarmup,
    PolynomialDecay,
    default_schedule,
    learning_rates,
)


@pytest.mark.golden("PolynomialDecayTest.test_basic")
def test_a_polynomial_schedule_grows_evenly():
    schedule = PolynomialDecay(0.01, 10, 0.11)
    assert schedule.at(1) == pytest.approx(0.02)
    assert schedule.at(2) == pytest.approx(0.03)


@pytest.mark.parametrize(("step", "rate"), [(0, 1.0), (5, 0.25), (10, 0.0), (99, 0.0)])
def test_polynomial_decay_with_a_power_stays_at_its_end(step, rate):
    assert PolynomialDecay(1.0, 10, 0.0, power=2.0).at(step) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 1.0), (5, 0.5), (10, 0.0), (11, 1 - 11 / 20), (20, 0.0), (25, 1 - 25 / 30)],
)
def test_a_cycle_starts_over_on_a_longer_run(step, rate):
    assert PolynomialDecay(1.0, 10, 0.0, cycle=True).at(step) == pytest.approx(rate)


@pytest.mark.parametrize(("step", "rate"), [(0, 0.0), (1, 0.05), (10, 0.5), (11, 0.5)])
def test_a_warm_up_is_a_straight_line_from_zero(step, rate):
    assert LinearWarmup(0.5, 10).at(step) == pytest.approx(rate)
    assert PolynomialDecay(0.0, 10, 0.5).at(step) == pytest.approx(rate)


def test_an_optimizer_without_a_schedule_has_its_own():
    assert default_schedule(Sgd(0.3)) == Constant(0.3)
    assert default_schedule(Adagrad(0.3, warmup_steps=7)) == LinearWarmup(0.3, 7)
    assert default_schedule(
        StochasticRoundingFloat16(Dc(Adam(0.2, warmup_steps=5)))
    ) == LinearWarmup(0.2, 5)
    assert default_schedule(MovingAverage()) == Constant(0.0)


def test_rates_of_all_segments_are_one_float32_vector():
    rates = learning_rates([Constant(0.1), LinearWarmup(1.0, 4)], 2)
    assert rates.dtype == np.float32
    np.testing.assert_array_equal(rates, np.float32([0.1, 0.5]))
    assert learning_rates([], 2).shape == (0,)


def test_schedules_are_equal_by_class_and_settings():
    assert PolynomialDecay(0.1, 10) == PolynomialDecay(0.1, 10, 1e-4)
    assert PolynomialDecay(0.1, 10) != PolynomialDecay(0.1, 11)
    assert Constant(0.1) != LinearWarmup(0.1, 1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PolynomialDecay(0.1, 0), "polynomial_decay: decay_steps 0 must be 1 or more"),
        (lambda: PolynomialDecay(float("nan"), 1), "initial_learning_rate nan is not finite"),
        (lambda: PolynomialDecay(0.1, 1, power=0), "power 0 must be above 0"),
        (lambda: PolynomialDecay(0.1, 1, cycle=1), "cycle 1 must be true or false"),
        (lambda: PolynomialDecay(0.1, 1).at(-1), "step -1 is negative"),
        (lambda: LinearWarmup(0.1, 0), "warmup_steps 0 must be 1 or more"),
        (lambda: Constant(float("inf")), "constant: learning_rate inf is not finite"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(InvalidSetting, match=message):
        build()
