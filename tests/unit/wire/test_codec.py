import numpy as np
import pytest

from megalith.protos import common_pb2, parameter_server_pb2
from megalith.wire import codec, routing
from megalith.wire.errors import InvalidSetting, MalformedArray
from megalith.wire.schema import Adagrad, RandomUniform, Segment, Sgd, TableConfig, VariableConfig, Zeros

TABLES = [
    TableConfig("t", (Segment(3, Zeros(), Sgd(0.5)),)),
    TableConfig("t", (Segment(1, RandomUniform(-0.25, 0.5), Adagrad(0.5, 0.25, 0.125)), Segment(2, Zeros(), Sgd(2.0)))),
]


@pytest.mark.parametrize("table", TABLES)
def test_tables_survive_the_round_trip(table):
    assert codec.table_from_proto(codec.table_to_proto(table)) == table


@pytest.mark.parametrize("value", [np.zeros((), np.int64), np.arange(6, dtype=np.float32).reshape(2, 3)])
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


@pytest.mark.parametrize("optimizer", [None, Adagrad()])
def test_variables_survive_the_round_trip(optimizer):
    config = VariableConfig("v", np.ones(2, np.float32), optimizer)
    back = codec.variable_from_proto(codec.variable_to_proto(config))
    assert (back.name, back.initial.tolist()) == ("v", [1.0, 1.0])
    assert (back.optimizer is None) == (optimizer is None)


def test_an_optimizer_that_is_not_set_is_refused():
    message = parameter_server_pb2.TableConfig(name="t", segments=[parameter_server_pb2.Segment(dim=1)])
    with pytest.raises(InvalidSetting, match="not set"):
        codec.table_from_proto(message)


def test_routing_survives_the_round_trip():
    current = routing.Routing(7, ("a:1", "b:2"), routing.even_owners(2))
    back = codec.routing_from_proto(codec.routing_to_proto(current))
    assert (back.epoch, back.addresses, back.owners.tolist()) == (7, ("a:1", "b:2"), current.owners.tolist())
