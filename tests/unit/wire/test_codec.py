from typing import get_args

import numpy as np
import pytest

from megalith.errors import InvalidSetting, MalformedArray
from megalith.protos import common_pb2, parameter_server_pb2, table_pb2
from megalith.schema import (
    Adagrad,
    Adam,
    Adamom,
    AdmissionConfig,
    Constants,
    Dc,
    DenseOptimizer,
    FilterKind,
    Fp16,
    Ftrl,
    Ones,
    Optimizer,
    PolynomialDecay,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    VariableConfig,
    Zeros,
)
from megalith.schema.variable_parts import VariableShape
from megalith.wire import codec, routing

TABLES = [
    TableConfig("t", (Segment(3, Zeros(), Sgd(0.5)),)),
    TableConfig(
        "t",
        (
            Segment(1, Ones(), Ftrl(beta=1.1), Fp16(), PolynomialDecay(0.1, 100)),
            Segment(2, Constants(0.3), Dc(Adam(), 0.2)),
        ),
        expire_days=3,
        expire_days_by_slot={5: 0},
        memory_budget_bytes=10_000_000,
        max_expire_share=0.25,
        initial_capacity=10,
        seed=3,
        admission=AdmissionConfig(
            kind=FilterKind.PLAIN, default_threshold=3, threshold_by_slot={1: 20}, capacity=99
        ),
        skip_nonfinite=True,
        features=("user", "item"),
    ),
    TableConfig(
        "t",
        (
            Segment(1, RandomUniform(-0.25, 0.5), Adagrad(0.5, 0.25, 0.125)),
            Segment(2, Zeros(), Sgd(2.0)),
        ),
    ),
]


@pytest.mark.parametrize("table", TABLES)
def test_tables_survive_the_round_trip(table):
    assert codec.table_from_proto(codec.table_to_proto(table)) == table


@pytest.mark.parametrize("optimizer", Optimizer.kinds.values(), ids=lambda kind: kind.name)
def test_every_optimizer_survives_the_round_trip(optimizer):
    value = optimizer(base=Adagrad(0.3)) if "base" in optimizer.__match_args__ else optimizer()
    table = TableConfig("t", (Segment(1, Zeros(), value),))
    assert codec.table_from_proto(codec.table_to_proto(table)) == table


def test_what_is_not_set_takes_the_schema_s_default():
    segment = table_pb2.Segment(dim=2)
    segment.initializer.random_uniform.SetInParent()
    segment.optimizer.adam.beta1 = 0.5
    table = codec.table_from_proto(table_pb2.TableConfig(name="t", segments=[segment]))
    assert table == TableConfig("t", (Segment(2, RandomUniform(), Adam(beta1=0.5)),))


@pytest.mark.parametrize(
    "value", [np.zeros((), np.int64), np.arange(6, dtype=np.float32).reshape(2, 3)]
)
def test_arrays_survive_the_round_trip(value):
    back = codec.array_from_proto(codec.array_to_proto(value), "x")
    assert back.dtype == value.dtype
    np.testing.assert_array_equal(back, value)


def test_an_array_of_another_dtype_does_not_travel():
    with pytest.raises(MalformedArray, match="float64"):
        codec.array_to_proto(np.zeros(2))


def test_an_unknown_dtype_tag_is_refused():
    with pytest.raises(MalformedArray, match="variable w: unknown dtype tag 99"):
        codec.array_from_proto(common_pb2.Array(dtype=99, data=b""), "variable w")


@pytest.mark.parametrize("optimizer", [None, *(kind() for kind in get_args(DenseOptimizer))])
def test_variables_survive_the_round_trip(optimizer):
    schedule = optimizer and PolynomialDecay(0.1, 100)
    config = VariableConfig("v", np.ones(2, np.float32), optimizer, schedule)
    back = codec.variable_from_proto(codec.variable_to_proto(config))
    assert (back.name, back.initial.tolist()) == ("v", [1.0, 1.0])
    assert (back.optimizer, back.schedule, back.part) == (optimizer, schedule, None)


def test_parts_of_variables_survive_the_round_trip():
    for config in VariableConfig("v", np.ones((50, 1000), np.float32), Adamom(0.5)).split(3):
        back = codec.variable_from_proto(codec.variable_to_proto(config))
        assert (back.part_name, back.part, back.optimizer) == (
            config.part_name,
            config.part,
            Adamom(0.5),
        )
        np.testing.assert_array_equal(back.initial, config.initial)


def test_shapes_of_variables_survive_the_round_trip():
    shape = VariableShape(np.dtype(np.float32), (50, 1000), 2, True)
    assert codec.variable_shape_from_proto(codec.variable_shape_to_proto(shape)) == shape
    with pytest.raises(MalformedArray, match="dtype tag 0"):
        codec.variable_shape_from_proto(parameter_server_pb2.VariableShape())


def test_optimizers_of_rows_and_of_variables_are_not_taken_for_each_other():
    message = parameter_server_pb2.VariableConfig(
        name="v", initial=codec.array_to_proto(np.ones(1, np.float32))
    )
    message.optimizer.ftrl.SetInParent()
    with pytest.raises(InvalidSetting, match="a variable's optimizer is ftrl; known are"):
        codec.variable_from_proto(message)
    segment = table_pb2.Segment(dim=2)
    segment.initializer.zeros.SetInParent()
    segment.optimizer.shampoo.SetInParent()
    with pytest.raises(InvalidSetting, match="optimizer is shampoo"):
        codec.table_from_proto(table_pb2.TableConfig(name="t", segments=[segment]))


def test_an_optimizer_that_is_not_set_is_refused():
    message = table_pb2.TableConfig(name="t", segments=[table_pb2.Segment(dim=1)])
    with pytest.raises(InvalidSetting, match="not set"):
        codec.table_from_proto(message)


def test_routing_survives_the_round_trip():
    current = routing.Routing(7, ("a:1", "b:2"), routing.even_owners(2))
    back = codec.routing_from_proto(codec.routing_to_proto(current))
    assert (back.epoch, back.addresses, back.owners.tolist()) == (
        7,
        ("a:1", "b:2"),
        current.owners.tolist(),
    )
