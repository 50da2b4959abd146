"""Schema, routing and arrays to and from protobuf messages."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.protos import common_pb2, parameter_server_pb2
from megalith.wire import arrays, routing
from megalith.wire.errors import InvalidSetting, MalformedArray
from megalith.wire.routing import Routing
from megalith.wire.schema import (
    Adagrad,
    Fp32,
    Initializer,
    Optimizer,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    VariableConfig,
    Zeros,
)

_DTYPES: "dict[common_pb2.DType.ValueType, np.dtype[Any]]" = {
    common_pb2.DTYPE_FLOAT32: arrays.VALUE,
    common_pb2.DTYPE_INT64: arrays.KEY,
}
_TAGS = {dtype: tag for tag, dtype in _DTYPES.items()}


def array_to_proto(array: NDArray[Any]) -> common_pb2.Array:
    if array.dtype not in _TAGS:
        raise MalformedArray(f"dtype {array.dtype} does not travel; convert it to float32 or int64")
    return common_pb2.Array(dtype=_TAGS[array.dtype], shape=array.shape, data=arrays.encode(array))


def array_from_proto(message: common_pb2.Array, what: str) -> NDArray[Any]:
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise MalformedArray(f"{what}: unknown dtype tag {message.dtype}")
    return arrays.decode(message.data, dtype, tuple(message.shape), what)


def routing_to_proto(value: Routing) -> common_pb2.RoutingMap:
    return common_pb2.RoutingMap(
        epoch=value.epoch, addresses=value.addresses, owners=routing.encode_owners(value.owners)
    )


def routing_from_proto(message: common_pb2.RoutingMap) -> Routing:
    return Routing(message.epoch, tuple(message.addresses), routing.decode_owners(message.owners))


def _initializer_to_proto(value: Initializer) -> parameter_server_pb2.Initializer:
    match value:
        case Zeros():
            return parameter_server_pb2.Initializer(zeros=parameter_server_pb2.Zeros())
        case RandomUniform(minval, maxval):
            uniform = parameter_server_pb2.RandomUniform(minval=minval, maxval=maxval)
            return parameter_server_pb2.Initializer(random_uniform=uniform)
        case _:
            raise InvalidSetting(f"initializer {value.name} does not travel in this version")


def _initializer_from_proto(message: parameter_server_pb2.Initializer) -> Initializer:
    match message.WhichOneof("kind"):
        case "random_uniform":
            return RandomUniform(message.random_uniform.minval, message.random_uniform.maxval)
        case "zeros":
            return Zeros()
        case _:
            raise InvalidSetting("segment: the initializer is not set, or of a kind this version does not know")


def _optimizer_to_proto(value: Optimizer) -> parameter_server_pb2.Optimizer:
    match value:
        case Sgd(learning_rate):
            return parameter_server_pb2.Optimizer(sgd=parameter_server_pb2.Sgd(learning_rate=learning_rate))
        case Adagrad(learning_rate, initial, decay):
            adagrad = parameter_server_pb2.Adagrad(
                learning_rate=learning_rate, initial_accumulator_value=initial, weight_decay_factor=decay
            )
            return parameter_server_pb2.Optimizer(adagrad=adagrad)
        case _:
            raise InvalidSetting(f"optimizer {value.name} does not travel in this version")


def _optimizer_from_proto(message: parameter_server_pb2.Optimizer) -> Optimizer:
    match message.WhichOneof("kind"):
        case "sgd":
            return Sgd(message.sgd.learning_rate)
        case "adagrad":
            adagrad = message.adagrad
            return Adagrad(adagrad.learning_rate, adagrad.initial_accumulator_value, adagrad.weight_decay_factor)
        case _:
            raise InvalidSetting("the optimizer is not set, or of a kind this version does not know")


def table_to_proto(value: TableConfig) -> parameter_server_pb2.TableConfig:
    segments = [_segment_to_proto(segment) for segment in value.segments]
    return parameter_server_pb2.TableConfig(name=value.name, segments=segments)


def _segment_to_proto(value: Segment) -> parameter_server_pb2.Segment:
    """Without the schedule: workers evaluate it and send rates."""
    if value.compressor != Fp32():
        raise InvalidSetting(f"compressor {value.compressor.name} does not travel in this version")
    return parameter_server_pb2.Segment(
        dim=value.dim,
        initializer=_initializer_to_proto(value.initializer),
        optimizer=_optimizer_to_proto(value.optimizer),
    )


def table_from_proto(message: parameter_server_pb2.TableConfig) -> TableConfig:
    segments = tuple(
        Segment(segment.dim, _initializer_from_proto(segment.initializer), _optimizer_from_proto(segment.optimizer))
        for segment in message.segments
    )
    return TableConfig(message.name, segments)


def variable_to_proto(value: VariableConfig) -> parameter_server_pb2.VariableConfig:
    message = parameter_server_pb2.VariableConfig(name=value.name, initial=array_to_proto(value.initial))
    if value.optimizer is not None:
        message.optimizer.CopyFrom(_optimizer_to_proto(value.optimizer))
    return message


def variable_from_proto(message: parameter_server_pb2.VariableConfig) -> VariableConfig:
    optimizer = _optimizer_from_proto(message.optimizer) if message.HasField("optimizer") else None
    return VariableConfig(message.name, array_from_proto(message.initial, f"variable {message.name}"), optimizer)
