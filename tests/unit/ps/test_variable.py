import numpy as np
import pytest

from megalith.ps.variable import UpdateKind, Variable
from megalith.wire.errors import InvalidRequest, NonFiniteValue, ShapeMismatch, TableConflict
from megalith.wire.schema import Adagrad, Sgd, VariableConfig


def variable(value=(1.0, 2.0), optimizer=None):
    return Variable(VariableConfig("v", np.array(value, np.float32), optimizer))


def test_add_and_assign_and_gradients():
    held = variable(optimizer=Sgd(0.5))
    assert held.apply(UpdateKind.ADD, np.array([1, 1], np.float32)).tolist() == [2.0, 3.0]
    assert held.apply(UpdateKind.GRADIENT, np.array([2, 4], np.float32)).tolist() == [1.0, 1.0]
    assert held.apply(UpdateKind.ASSIGN, np.array([7, 8], np.float32)).tolist() == [7.0, 8.0]


def test_adagrad_follows_its_formula():
    held = variable((0.0, 0.0), Adagrad(0.1, initial_accumulator_value=1.0))
    held.apply(UpdateKind.GRADIENT, np.array([1, 2], np.float32))
    np.testing.assert_allclose(held.read(), [-0.07071067, -0.08944272], atol=1e-6)


def test_a_scalar_counter_counts():
    held = Variable(VariableConfig("global_step", np.zeros((), np.int64)))
    held.apply(UpdateKind.ADD, np.array(2, np.int64))
    assert held.apply(UpdateKind.ADD, np.array(3, np.int64)) == 5
    assert held.read().dtype == np.int64


@pytest.mark.parametrize(
    ("update", "error"),
    [
        (np.zeros(3, np.float32), ShapeMismatch),
        (np.zeros(2, np.int64), ShapeMismatch),
        (np.array([np.nan, 0], np.float32), NonFiniteValue),
    ],
)
def test_bad_updates_are_refused_and_change_nothing(update, error):
    held = variable(optimizer=Sgd())
    with pytest.raises(error):
        held.apply(UpdateKind.ADD, update)
    assert held.read().tolist() == [1.0, 2.0]


def test_a_gradient_without_an_optimizer_is_refused():
    with pytest.raises(InvalidRequest, match="no optimizer"):
        variable().apply(UpdateKind.GRADIENT, np.zeros(2, np.float32))


def test_another_shape_or_optimizer_is_a_conflict():
    with pytest.raises(TableConflict, match="use another name"):
        variable().reconfigure(VariableConfig("v", np.zeros(3, np.float32)))
    with pytest.raises(TableConflict):
        variable().reconfigure(VariableConfig("v", np.zeros(2, np.float32), Sgd()))


def test_value_and_state_survive_dump_and_load():
    source, target = (variable(optimizer=Adagrad(0.1)) for _ in range(2))
    source.apply(UpdateKind.GRADIENT, np.array([1, 2], np.float32))
    target.load(*source.dump())
    for held in (source, target):
        held.apply(UpdateKind.GRADIENT, np.array([1, 2], np.float32))
    assert source.read().tolist() == target.read().tolist()
