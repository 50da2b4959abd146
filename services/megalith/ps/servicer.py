"""gRPC face of a parameter server: decode, one call, encode."""

import grpc

from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.ps.store import Store, TableGradients, VariableUpdate
from megalith.ps.table import EmbeddingTable
from megalith.ps.variable import UpdateKind
from megalith.wire import arrays, codec
from megalith.wire.errors import InvalidRequest, MalformedArray

_KINDS = {
    pb.VariableUpdate.KIND_GRADIENT: UpdateKind.GRADIENT,
    pb.VariableUpdate.KIND_ADD: UpdateKind.ADD,
    pb.VariableUpdate.KIND_ASSIGN: UpdateKind.ASSIGN,
}


class ParameterServicer(parameter_server_pb2_grpc.ParameterServerServicer):
    """The data plane of one ps."""

    def __init__(self, index: int, store: Store) -> None:
        self._index, self._store = index, store

    def CreateTables(self, request: pb.CreateTablesRequest, context: grpc.ServicerContext) -> pb.CreateTablesResponse:
        self._store.create_tables(request.epoch, [codec.table_from_proto(table) for table in request.tables])
        return pb.CreateTablesResponse()

    def CreateVariables(
        self, request: pb.CreateVariablesRequest, context: grpc.ServicerContext
    ) -> pb.CreateVariablesResponse:
        self._store.create_variables(request.epoch, [codec.variable_from_proto(item) for item in request.variables])
        return pb.CreateVariablesResponse()

    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> pb.PullResponse:
        tables = [(part.table, arrays.decode_keys(part.keys, f"ids of table {part.table}")) for part in request.tables]
        rows, variables = self._store.pull(request.epoch, tables, request.variables)
        return pb.PullResponse(
            rows=[arrays.encode(matrix) for matrix in rows],
            variables=[codec.array_to_proto(value) for value in variables],
        )

    def Push(self, request: pb.PushRequest, context: grpc.ServicerContext) -> pb.PushResponse:
        added = self._store.push(
            request.epoch,
            request.client_id,
            request.sequence,
            [_decode_gradients(part) for part in request.tables],
            [_decode_update(update) for update in request.variables],
            request.req_time_s,
            request.step,
        )
        return pb.PushResponse(added=[codec.array_to_proto(value) for value in added])

    def Expire(self, request: pb.ExpireRequest, context: grpc.ServicerContext) -> pb.ExpireResponse:
        return pb.ExpireResponse(dropped=self._store.expire())

    def GetPsStatus(self, request: pb.GetPsStatusRequest, context: grpc.ServicerContext) -> pb.GetPsStatusResponse:
        return pb.GetPsStatusResponse(
            index=self._index,
            epoch=self._store.epoch,
            tables=[_encode_status(table) for table in self._store.tables()],
            variables=[variable.config.name for variable in self._store.variables()],
        )


def _encode_status(table: EmbeddingTable) -> pb.TableStatus:
    stats = table.stats()
    return pb.TableStatus(
        config=codec.table_to_proto(table.config),
        rows=stats.size,
        bytes=stats.nbytes,
        created=stats.created,
        refused=stats.refused,
        barred=stats.barred,
        nonfinite=stats.nonfinite,
        expired=stats.expired,
        touched=stats.touched,
        touched_overflow=stats.touched_overflow,
    )


def _decode_gradients(message: pb.TableGradients) -> TableGradients:
    keys = arrays.decode_keys(message.keys, f"ids of table {message.table}")
    data = message.gradients  # each access of a bytes field copies it
    size = len(data) // arrays.VALUE.itemsize
    if keys.size == 0 or size % keys.size or len(data) % arrays.VALUE.itemsize:
        raise MalformedArray(
            f"table {message.table}: {len(data)} bytes of gradients for {keys.size} ids; "
            "expected float32 [ids, dim] with at least one id"
        )
    gradients = arrays.decode(data, arrays.VALUE, (keys.size, size // keys.size), "gradients")
    return TableGradients(message.table, keys, gradients, tuple(message.learning_rates))


def _decode_update(message: pb.VariableUpdate) -> VariableUpdate:
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise InvalidRequest(f"variable {message.name}: unknown kind of update {message.kind}")
    return VariableUpdate(message.name, kind, codec.array_from_proto(message.value, f"variable {message.name}"))
