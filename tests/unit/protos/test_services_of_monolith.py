"""The two services that programs of Monolith and of its platform call stay as those know them.

What stands here is what those programs were built with, written down by hand: names, tags and
types. A field of any other kind would be read as something else, without an error.
"""

import pytest

from megalith.protos import appmaster_pb2, controller_pb2

INT64 = "google.protobuf.Int64Value"
NOTHING = {}
STATE = {"PS_REGISTERING": 0, "PS_REGISTERED": 1, "RUNNING": 2, "FINISH": 3}
SAVEPOINT_STATE = {"PENDING": 0, "RUNNING": 1, "SUCCEEDED": 2, "FAILED": 3}
PS_INFO = {1: "string ip", 2: "repeated int32 ports", 3: "int32 shard_id", 4: "string name"}
ENDED = {1: "int32 exit_code", 2: "string diagnose", 3: f"{INT64} graceful_shutdown_timeout_ms"}

CONTROLLER = {
    "/Controller/StopTraining": (NOTHING, NOTHING),
    "/Controller/ResumeTraining": (NOTHING, NOTHING),
    "/Controller/GetBlockStatus": (
        NOTHING,
        {1: "repeated int32 blocked_indices", 2: "repeated int32 unblocked_indices"},
    ),
    "/Controller/SaveCheckpoint": (NOTHING, NOTHING),
    "/Controller/GetTrainingStatus": (NOTHING, {1: "int64 global_step"}),
}
APP_MASTER = {
    "/primus.AppMasterService/ponyHeartbeat": (NOTHING, {1: "primus.PonyState state"}),
    "/primus.AppMasterService/ponyGetPSInfo": (NOTHING, {1: "repeated primus.PSInfo ps_info"}),
    "/primus.AppMasterService/ponyStartWorker": (NOTHING, NOTHING),
    "/primus.AppMasterService/succeed": (ENDED, NOTHING),
    "/primus.AppMasterService/kill": (ENDED, NOTHING),
    "/primus.AppMasterService/suspend": ({1: "int32 snapshot_id"}, NOTHING),
    "/primus.AppMasterService/suspendStatus": (NOTHING, {1: "bool succeed", 2: "string message"}),
    "/primus.AppMasterService/resume": (NOTHING, NOTHING),
    "/primus.AppMasterService/getSnapshot": (
        {1: "int32 snapshot_id"},
        {1: "bool available", 2: "string dir"},
    ),
    "/primus.AppMasterService/progress": (NOTHING, {1: "float progress"}),
    "/primus.AppMasterService/isStarving": (NOTHING, {1: "bool starving"}),
    "/primus.AppMasterService/status": (
        NOTHING,
        {1: "string app_id", 2: "string final_status", 3: "string track_url"},
    ),
    "/primus.AppMasterService/getTaskTimePoint": (NOTHING, {1: "string time_point"}),
    "/primus.AppMasterService/createSavepoint": (
        {1: "string savepoint_dir"},
        {1: "int32 code", 2: "string message", 3: "string savepoint_id"},
    ),
    "/primus.AppMasterService/createSavepointStatus": (
        {1: "string savepoint_restore_id"},
        {
            1: "int32 code",
            2: "string message",
            3: "primus.CreateSavepointStatusResponse.CreateSavepointState create_savepoint_state",
        },
    ),
}


def type_of(field):
    kind = field.message_type or field.enum_type
    if kind is not None:
        return kind.full_name

    names = {field.TYPE_INT32: "int32", field.TYPE_INT64: "int64", field.TYPE_STRING: "string"}
    names |= {field.TYPE_BOOL: "bool", field.TYPE_FLOAT: "float"}
    return names[field.type]


def fields_of(message):
    found = {}
    for field in message.fields:
        assert field.containing_oneof is None  # also what `optional` makes of a field
        often = "repeated " if field.is_repeated else ""
        found[field.number] = f"{often}{type_of(field)} {field.name}"
    return found


def methods_of(service):
    found = {}
    for method in service.methods:
        assert not method.client_streaming
        assert not method.server_streaming
        messages = fields_of(method.input_type), fields_of(method.output_type)
        found[f"/{service.full_name}/{method.name}"] = messages
    return found


@pytest.mark.parametrize(
    ("file", "expected"),
    [(controller_pb2.DESCRIPTOR, CONTROLLER), (appmaster_pb2.DESCRIPTOR, APP_MASTER)],
)
def test_methods_fields_tags_and_types_are_those_of_monolith(file, expected):
    (service,) = file.services_by_name.values()
    assert methods_of(service) == expected


def test_the_enums_and_the_inner_message_of_the_platform_are_its_own():
    messages = appmaster_pb2.DESCRIPTOR.message_types_by_name
    assert fields_of(messages["PSInfo"]) == PS_INFO
    assert dict(appmaster_pb2.PonyState.items()) == STATE
    response = appmaster_pb2.CreateSavepointStatusResponse
    assert dict(response.CreateSavepointState.items()) == SAVEPOINT_STATE
