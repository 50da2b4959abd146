"""Golden numbers of sgd and adagrad, alone and side by side in a row."""

import platform

import numpy as np
import pytest
from hypothesis import given, settings

from megalith.engine.segments.optimizer import row_optimizer
from megalith.schema.optimizers import Adagrad, Sgd
from megalith.schema.schedules import PolynomialDecay
from support.optimizer_rows import Rows, assert_vectorised, calls, close, compare_with_twin


@pytest.mark.golden("SgdOptimizer.Basic")
def test_sgd_moves_by_rate_times_gradient():
    close(Rows(Sgd(), 1).apply([1], lr=0.1), [-0.1])


@pytest.mark.golden("HashTableOpsTest.test_gradients_with_learning_rate_decay")
def test_sgd_at_the_rate_of_a_schedule_moves_a_repeated_row_twice():
    rows = Rows(Sgd(), 1, count=2)
    rate = PolynomialDecay(0.01, 10, 0.11).at(1)
    close(rows.apply([[-1], [-1], [-1]], lr=rate, rows=[0, 0, 1]), [0.04, 0.02])


@pytest.mark.golden("AdagradOptimizer.Basic")
def test_adagrad_divides_by_the_root_of_its_accumulator():
    rows = Rows(Adagrad(initial_accumulator_value=1.0), 2)
    close(rows.apply([1, 2], lr=0.1), [-0.07071067, -0.08944272])


@pytest.mark.golden("AdagradOptimizer.OptimizeWithWeightDecay")
def test_adagrad_decays_weights_through_the_gradient():
    rows = Rows(Adagrad(initial_accumulator_value=1.0, weight_decay_factor=0.1), 2)
    close(rows.apply([1, 2], lr=0.1), [-0.07071067, -0.08944272])
    close(rows.apply([1, 2], lr=0.1), [-0.128173, -0.155943])
    close(rows.dump()["norm"], [2.9859078, 8.964303])


def test_adagrad_weight_decay_is_the_scalar_formula_at_every_width():
    rows = Rows(Adagrad(initial_accumulator_value=1.0, weight_decay_factor=0.1), 9, weights=0.5)
    close(rows.apply([1] * 9, lr=0.1), [0.4275862] * 9)
    close(rows.dump()["norm"], [2.1025] * 9)


@pytest.mark.golden("EntryAccessorTest.SaveRestore")
def test_a_copied_adagrad_row_goes_on_where_it_stood():
    first = Rows(Adagrad(initial_accumulator_value=0.1), 1)
    close(first.apply([1], lr=1), [-0.95346254])
    second = Rows(Adagrad(initial_accumulator_value=0.1), 1, weights=first.weights.copy())
    second.state[:] = first.state
    close(second.apply([1], lr=1), [-1.643528])


@pytest.mark.golden("CombineOptimizers.Basic")
@pytest.mark.parametrize("restored", [False, True])
def test_two_adagrads_side_by_side_do_not_touch_each_other(restored):
    """Two segments of one row, each with its own accumulator start and rate."""
    first = row_optimizer(Adagrad(initial_accumulator_value=1.0), 1)
    second = row_optimizer(Adagrad(initial_accumulator_value=2.0), 2)
    row = np.concatenate([np.zeros(3), first.initial_state, second.initial_state]).astype(
        np.float32
    )
    grads, start = np.array([[1, 2, 3]], np.float32), np.zeros(1, np.int64)

    def step():
        first.apply(row, start, 0, 3, grads, 0, 1, np.float32(1), 0)
        second.apply(row, start, 1, 4, grads, 1, 2, np.float32(2), 0)

    step()
    close(row[:3], [-0.70710677, -1.6329931, -1.8090681])
    if restored:
        state = row[3:].copy()
        row[:] = 0
        row[3:] = state
        step()
        close(row[:3], [-0.57735026, -1.264911, -1.3416407])


@pytest.mark.golden("EntryAccessorTest.FromConfig")
def test_two_sgds_side_by_side_have_their_own_rates():
    sgd = [row_optimizer(Sgd(), 1), row_optimizer(Sgd(), 2)]
    row, grads, start = (
        np.zeros(3, np.float32),
        np.array([[1, 2, 3]], np.float32),
        np.zeros(1, np.int64),
    )
    sgd[0].apply(row, start, 0, 3, grads, 0, 1, np.float32(1), 0)
    sgd[1].apply(row, start, 1, 3, grads, 1, 2, np.float32(2), 0)
    close(row, [-1, -4, -6])


@given(call=calls())
@settings(max_examples=40)
@pytest.mark.parametrize("config", [Sgd(), Adagrad(), Adagrad(weight_decay_factor=0.1)], ids=repr)
def test_the_kernel_does_what_its_twin_does(config, call):
    compare_with_twin(config, call)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 instructions")
@pytest.mark.parametrize(
    ("config", "instructions"), [(Adagrad(), ("vsqrtps", "vdivps")), (Sgd(), ("vfnmadd",))]
)
def test_the_loop_over_a_segment_is_vectorised(config, instructions):
    assert_vectorised(config, instructions)
