"""Schema, routing, arrays and reports of members to and from protobuf messages.

Reports have the same names of fields on both sides, so a new field needs no line here.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.errors import InvalidSetting, MalformedArray
from megalith.protos import common_pb2, coordination_pb2, parameter_server_pb2, table_pb2
from megalith.schema import (
    AdmissionConfig,
    Compressor,
    DenseOptimizer,
    FilterKind,
    Initializer,
    Optimizer,
    Part,
    Schedule,
    Segment,
    TableConfig,
    VariableConfig,
)
from megalith.schema.checks import build_named, kinds_of
from megalith.schema.variable_parts import VariableShape
from megalith.wire import arrays, piece_codec, routing
from megalith.wire.reports import (
    PsReport,
    ReplicaReport,
    RestoreReport,
    TableFreshness,
    WorkerReport,
)
from megalith.wire.routing import Routing

_DTYPES: "dict[common_pb2.DType.ValueType, np.dtype[Any]]" = {
    common_pb2.DTYPE_FLOAT32: arrays.VALUE,
    common_pb2.DTYPE_INT64: arrays.ID,
}
_TAGS = {dtype: tag for tag, dtype in _DTYPES.items()}
_ROW_DTYPES: "dict[common_pb2.DType.ValueType, np.dtype[Any]]" = {
    common_pb2.DTYPE_UNSPECIFIED: arrays.VALUE,
    common_pb2.DTYPE_FLOAT32: arrays.VALUE,
    common_pb2.DTYPE_FLOAT16: arrays.HALF,
}


def row_dtype(tag: "common_pb2.DType.ValueType", what: str) -> np.dtype[Any]:
    """Of rows or gradients on the wire; other tags are MalformedArray."""
    if tag not in _ROW_DTYPES:
        raise MalformedArray(
            f"{what}: dtype tag {tag} is none of rows or gradients; they are float32 or float16"
        )

    return _ROW_DTYPES[tag]


def array_to_proto(array: NDArray[Any]) -> common_pb2.Array:
    message = array_head_to_proto(array)
    message.data = arrays.encode(array)
    return message


def array_head_to_proto(array: NDArray[Any]) -> common_pb2.Array:
    """All but its elements, which travel beside the message."""
    return common_pb2.Array(dtype=_tag_of(array), shape=array.shape)


def _tag_of(array: NDArray[Any]) -> common_pb2.DType.ValueType:
    tag = _TAGS.get(array.dtype)
    if tag is None:
        raise MalformedArray(f"dtype {array.dtype} does not travel; convert it to float32 or int64")

    return tag


def array_from_proto(
    message: common_pb2.Array, what: str, data: bytes | memoryview | None = None
) -> NDArray[Any]:
    """The array of a message; `data` are its elements if they travelled beside it."""
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise MalformedArray(f"{what}: unknown dtype tag {message.dtype}")

    elements = message.data if data is None else data
    return arrays.decode(elements, dtype, tuple(message.shape), what)


def routing_to_proto(value: Routing) -> common_pb2.RoutingMap:
    return common_pb2.RoutingMap(
        epoch=value.epoch,
        addresses=value.addresses,
        owners=routing.encode_owners(value.owners),
        run_id=value.run_id,
        instances=value.instances,
    )


def routing_from_proto(message: common_pb2.RoutingMap) -> Routing:
    return Routing(
        message.epoch,
        tuple(message.addresses),
        routing.decode_owners(message.owners),
        message.run_id,
        tuple(message.instances),
    )


def _settings_to_proto(value: Any, message: Any) -> None:
    """Every field of a schema class into the field of the same name; None stays unset."""
    for item in dataclasses.fields(value):
        content = getattr(value, item.name)
        if content is None:
            continue

        if isinstance(content, Mapping):
            field = getattr(message, item.name)
            field.update(content)

        elif isinstance(content, tuple):
            field = getattr(message, item.name)
            for part in content:
                if isinstance(part, str):
                    field.append(part)
                else:
                    _settings_to_proto(part, field.add())

        elif isinstance(content, AdmissionConfig):
            _settings_to_proto(content, getattr(message, item.name))

        elif dataclasses.is_dataclass(content):
            _choice_to_proto(content, getattr(message, item.name))

        else:
            setattr(message, item.name, content)


def _choice_to_proto(value: Any, message: Any) -> None:
    """One of several schema classes into the case of the same name."""
    chosen = getattr(message, value.name)
    chosen.SetInParent()
    _settings_to_proto(value, chosen)


def _settings_from_proto(message: Any) -> dict[str, Any]:
    """Plain fields that are set, by name; what is not set takes the schema's default."""
    given = {}
    for field in message.DESCRIPTOR.fields:
        is_value = field.message_type is None and field.has_presence
        if is_value and message.HasField(field.name):
            given[field.name] = getattr(message, field.name)

    return given


def _choice_from_proto(message: Any, union: Any, what: str) -> Any:
    """The schema class that the message chose."""
    name = message.WhichOneof("kind")
    classes = {kind.name: kind for kind in kinds_of(union)}
    if name not in classes:
        found = name or "not set, or newer than this version"
        known = sorted(classes)
        raise InvalidSetting(f"{what} is {found}; known are {known}")

    chosen = getattr(message, name)
    settings = _settings_from_proto(chosen)
    if "base" in chosen.DESCRIPTOR.fields_by_name:
        settings["base"] = _choice_from_proto(chosen.base, union, f"the base of {name}")

    return build_named(what, classes.values(), name, settings)


def table_to_proto(value: TableConfig) -> table_pb2.TableConfig:
    message = table_pb2.TableConfig()
    _settings_to_proto(value, message)
    return message


def table_from_proto(message: table_pb2.TableConfig) -> TableConfig:
    settings = _settings_from_proto(message)
    if message.HasField("admission"):
        settings["admission"] = _admission_from_proto(message.admission)

    return TableConfig(
        name=message.name,
        segments=tuple(_segment_from_proto(segment) for segment in message.segments),
        expire_days_by_slot=dict(message.expire_days_by_slot),
        features=tuple(message.features),
        **settings,
    )


def _segment_from_proto(message: table_pb2.Segment) -> Segment:
    optional: dict[str, Any] = {}
    if message.HasField("compressor"):
        optional["compressor"] = _choice_from_proto(message.compressor, Compressor, "compressor")
    if message.HasField("schedule"):
        optional["schedule"] = _choice_from_proto(message.schedule, Schedule, "schedule")

    return Segment(
        message.dim,
        _choice_from_proto(message.initializer, Initializer, "initializer"),
        _choice_from_proto(message.optimizer, Optimizer, "optimizer"),
        **optional,
    )


def _admission_from_proto(message: table_pb2.Admission) -> AdmissionConfig:
    if message.kind not in list(FilterKind):
        raise InvalidSetting(
            f"admission: unknown kind {message.kind!r}; known are {', '.join(FilterKind)}"
        )

    return AdmissionConfig(
        kind=FilterKind(message.kind),
        threshold_by_slot=dict(message.threshold_by_slot),
        **_settings_from_proto(message),
    )


def variable_to_proto(value: VariableConfig) -> parameter_server_pb2.VariableConfig:
    message = parameter_server_pb2.VariableConfig(
        name=value.name, initial=array_to_proto(value.initial)
    )
    if value.optimizer is not None:
        _choice_to_proto(value.optimizer, message.optimizer)
    if value.schedule is not None:
        _choice_to_proto(value.schedule, message.schedule)
    if value.part is not None:
        _settings_to_proto(value.part, message.part)

    return message


def variable_from_proto(message: parameter_server_pb2.VariableConfig) -> VariableConfig:
    optional: dict[str, Any] = {}
    if message.HasField("optimizer"):
        optional["optimizer"] = _choice_from_proto(
            message.optimizer, DenseOptimizer, "a variable's optimizer"
        )

    if message.HasField("schedule"):
        optional["schedule"] = _choice_from_proto(message.schedule, Schedule, "schedule")
    if message.HasField("part"):
        optional["part"] = Part(message.part.index, message.part.count, message.part.rows)

    return VariableConfig(
        message.name, array_from_proto(message.initial, f"variable {message.name}"), **optional
    )


def variable_shape_to_proto(value: VariableShape) -> parameter_server_pb2.VariableShape:
    return parameter_server_pb2.VariableShape(
        dtype=_TAGS[value.dtype],
        shape=value.shape,
        parts=value.parts,
        takes_gradients=value.takes_gradients,
    )


def variable_shape_from_proto(message: parameter_server_pb2.VariableShape) -> VariableShape:
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise MalformedArray(f"shape of a variable: unknown dtype tag {message.dtype}")

    return VariableShape(dtype, tuple(message.shape), message.parts, message.takes_gradients)


def worker_report_to_proto(report: WorkerReport) -> coordination_pb2.WorkerReport:
    values = _values(report)
    values["pieces"] = [piece_codec.progress_to_proto(each) for each in report.pieces]
    return coordination_pb2.WorkerReport(**values)


def worker_report_from_proto(message: coordination_pb2.WorkerReport) -> WorkerReport:
    values = _read(message, WorkerReport)
    values["results"] = dict(message.results)
    values["metrics"] = dict(message.metrics)
    values["pieces"] = tuple(piece_codec.progress_from_proto(each) for each in message.pieces)
    values["hook_failures"] = tuple(message.hook_failures)

    return WorkerReport(**values)


def ps_report_to_proto(report: PsReport) -> coordination_pb2.PsReport:
    values = _values(report)
    if report.restored is not None:
        values["restored"] = coordination_pb2.Restored(**_values(report.restored))

    return coordination_pb2.PsReport(**values)


def ps_report_from_proto(message: coordination_pb2.PsReport) -> PsReport:
    values = _read(message, PsReport)
    values["restored"] = None
    if message.HasField("restored"):
        restored = _read(message.restored, RestoreReport)
        values["restored"] = RestoreReport(**restored)

    values["dropped_tables"] = dict(message.dropped_tables)

    return PsReport(**values)


def replica_report_to_proto(report: ReplicaReport) -> coordination_pb2.ReplicaReport:
    tables = []
    for each in report.tables:
        freshness = coordination_pb2.TableFreshness(**_values(each))
        tables.append(freshness)

    values = _values(report)
    values["tables"] = tables
    return coordination_pb2.ReplicaReport(**values)


def replica_report_from_proto(message: coordination_pb2.ReplicaReport) -> ReplicaReport:
    values = _read(message, ReplicaReport)
    tables = []
    for each in message.tables:
        freshness = TableFreshness(**_read(each, TableFreshness))
        tables.append(freshness)

    values["tables"] = tuple(tables)

    return ReplicaReport(**values)


def _values(report: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(report)]
    return {name: getattr(report, name) for name in names}


def _read(message: Any, report: type[Any]) -> dict[str, Any]:
    """The fields of a message that the report has."""
    names = [field.name for field in dataclasses.fields(report)]
    return {name: getattr(message, name) for name in names}
