import numpy as np
import pytest

from megalith.engine.variable.variable import UpdateKind, Variable
from megalith.errors import (
    DtypeMismatch,
    InvalidRequest,
    NonFiniteValue,
    ShapeMismatch,
    TableConflict,
)
from megalith.schema import (
    Adagrad,
    Adam,
    Adamom,
    DenseRmsprop,
    DenseRmspropV2,
    Momentum,
    Sgd,
    Shampoo,
    VariableConfig,
)


def variable(value=(1.0, 2.0), optimizer=None):
    return Variable(VariableConfig("v", np.array(value, np.float32), optimizer))


def test_add_and_assign_and_gradients():
    held = variable(optimizer=Sgd(0.5))
    assert held.apply(UpdateKind.ADD, np.array([1, 1], np.float32)).tolist() == [2.0, 3.0]
    held.apply(UpdateKind.GRADIENT, np.array([2, 4], np.float32))
    assert held.read().tolist() == [1.0, 1.0]
    held.apply(UpdateKind.ASSIGN, np.array([7, 8], np.float32))
    assert held.read().tolist() == [7.0, 8.0]


def test_raising_takes_the_larger_of_each_element_and_can_be_repeated():
    held = variable()
    for _ in range(2):
        assert held.apply(UpdateKind.RAISE, np.array([5, 0.5], np.float32)).tolist() == [5.0, 2.0]
    assert held.read().tolist() == [5.0, 2.0]


def test_a_scalar_counter_counts():
    held = Variable(VariableConfig("global_step", np.zeros((), np.int64)))
    held.apply(UpdateKind.ADD, np.array(2, np.int64))
    assert held.apply(UpdateKind.ADD, np.array(3, np.int64)) == 5
    assert held.read().dtype == np.int64


@pytest.mark.parametrize(
    ("update", "error"),
    [
        (np.zeros(3, np.float32), ShapeMismatch),
        (np.zeros(2, np.int64), DtypeMismatch),
        (np.array([np.nan, 0], np.float32), NonFiniteValue),
    ],
)
@pytest.mark.parametrize("kind", [UpdateKind.ADD, UpdateKind.RAISE, UpdateKind.ASSIGN])
def test_bad_updates_are_refused_and_change_nothing(update, error, kind):
    held = variable(optimizer=Sgd())
    with pytest.raises(error):
        held.apply(kind, update)
    assert held.read().tolist() == [1.0, 2.0]


def test_a_gradient_without_an_optimizer_is_refused():
    with pytest.raises(InvalidRequest, match="no optimizer"):
        variable().apply(UpdateKind.GRADIENT, np.zeros(2, np.float32))


def test_another_shape_or_optimizer_is_a_conflict():
    with pytest.raises(TableConflict, match="use another name, or another model dir"):
        variable().reconfigure(VariableConfig("v", np.zeros(3, np.float32)))
    with pytest.raises(TableConflict):
        variable().reconfigure(VariableConfig("v", np.zeros(2, np.float32), Sgd()))


def test_state_of_another_optimizer_or_shape_is_not_loaded():
    held = variable(optimizer=Adagrad())
    with pytest.raises(ShapeMismatch, match="variable v: saved as"):
        held.load(*variable(optimizer=Sgd()).dump())
    with pytest.raises(ShapeMismatch):
        held.load(*variable((1.0,), Adagrad()).dump())
    assert held.read().tolist() == [1.0, 2.0]


def test_shampoo_with_other_eigenvalues_is_a_conflict():
    held = variable(optimizer=Shampoo())
    with pytest.raises(TableConflict, match="of 200 eigenvalues"):
        held.reconfigure(VariableConfig("v", np.zeros(2, np.float32), Shampoo(eigen_head=1)))


def test_a_part_knows_the_whole():
    parts = VariableConfig("v", np.zeros((5, 40_000), np.float32), Sgd()).split(2)
    assert [Variable(part).whole.shape for part in parts] == [(5, 40_000)] * 2
    assert [part.part_name for part in parts] == ["v@0/2", "v@1/2"]
    assert variable().whole.parts == 1


def test_what_would_overflow_is_left_out_and_counted_and_not_a_warning():
    held = variable((3e38, 0.0))
    assert held.apply(UpdateKind.ADD, np.array([3e38, 5], np.float32)).tolist() == [
        np.float32(3e38),
        0.0,
    ]
    assert held.nonfinite == 1
    assert held.apply(UpdateKind.ADD, np.array([-3e38, 5], np.float32)).tolist() == [0.0, 5.0]
    assert held.nonfinite == 1


LARGEST = np.iinfo(np.int64).max


@pytest.mark.parametrize(
    ("start", "summand"), [(LARGEST, 1), (-LARGEST, -2), (LARGEST, LARGEST), (-LARGEST - 1, -1)]
)
@pytest.mark.parametrize("shape", [(), (3,), (200, 300)])
def test_a_counter_does_not_wrap_around(start, summand, shape, caplog):
    """A sum beyond 64 bits in one element leaves the whole summand out; one that fits counts on."""
    initial = np.zeros(shape, np.int64)
    initial.flat[-1] = start
    update = np.ones(shape, np.int64)
    update.flat[-1] = summand
    held = Variable(VariableConfig("v", initial))
    for times in (1, 2):
        np.testing.assert_array_equal(held.apply(UpdateKind.ADD, update), initial)
        assert held.nonfinite == times
    assert [record.message for record in caplog.records] == [
        "variable update left out: its result does not fit 64 bits; more are only counted variable=v"
    ]
    update.flat[-1] = -np.sign(start)
    np.testing.assert_array_equal(held.apply(UpdateKind.ADD, update), initial + update)
    assert held.nonfinite == 2


def test_a_counter_reaches_both_ends_of_its_range():
    held = Variable(VariableConfig("v", np.array([LARGEST - 1, 1 - LARGEST])))
    assert held.apply(UpdateKind.ADD, np.array([1, -2])).tolist() == [LARGEST, -LARGEST - 1]
    assert held.nonfinite == 0


def test_three_finite_gradients_do_not_make_a_variable_infinite():
    held = variable((0.0, 1.0), Sgd(1.0))
    for _ in range(3):
        held.apply(UpdateKind.GRADIENT, np.array([-1.5e38, 0], np.float32))
    assert held.read().tolist() == [np.float32(3e38), 1.0]
    assert held.nonfinite == 1


OPTIMIZERS = [
    Sgd(),
    Momentum(),
    Adagrad(),
    Adam(),
    Adamom(),
    DenseRmsprop(),
    DenseRmspropV2(),
    Shampoo(warmup=1),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_a_huge_gradient_leaves_a_variable_that_goes_on_learning(optimizer):
    """After 1e20, whose square is no float32, a gradient of 1 moves it as if nothing had been."""
    held, other = variable((1.0, 2.0), optimizer), variable((1.0, 2.0), optimizer)
    ordinary = np.ones(2, np.float32)
    for step in range(1, 4):
        if optimizer.name not in (
            "sgd",
            "momentum",
        ):  # those have no squares: what they do with it is finite
            held.apply(UpdateKind.GRADIENT, np.array([1e20, 1], np.float32), step)
            assert held.nonfinite == step
        held.apply(UpdateKind.GRADIENT, ordinary, step)
        other.apply(UpdateKind.GRADIENT, ordinary, step)
    np.testing.assert_array_equal(held.read(), other.read())
    assert (held.read() != [1, 2]).all()


def test_a_variable_whose_saved_state_is_not_finite_learns_again_and_it_is_said(caplog):
    """Early versions let the state overflow.

    With it every gradient would be undone, also after an assign.
    """
    gradient = np.ones(3, np.float32)
    old = Variable(VariableConfig("w", np.zeros(3, np.float32), Adagrad(0.5)))
    old.apply(UpdateKind.GRADIENT, gradient)
    value, state = old.dump()
    for field in state.values():
        field[1] = np.inf
    held = Variable(VariableConfig("w", np.zeros(3, np.float32), Adagrad(0.5)))
    held.load(value, state)
    np.testing.assert_array_equal(held.read(), value)
    held.apply(UpdateKind.GRADIENT, gradient)
    assert held.nonfinite == 0
    assert (held.read() < value).all()
    assert "optimizer state is not finite, it begins anew: variable=w" in caplog.text
