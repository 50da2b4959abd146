"""gRPC face of a parameter server: decode, one call, encode."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import grpc

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.ps.data_plane import DataPlane
from megalith.ps.store.store import Store
from megalith.runtime.lane.settings import LaneSettings
from megalith.schema import table_counts
from megalith.wire import arrays, codec
from megalith.wire.budget import ByteBudget


class ParameterServicer(parameter_server_pb2_grpc.ParameterServerServicer):
    """The data plane of one ps."""

    def __init__(
        self,
        index: int,
        store: Store,
        data: DataPlane,
        requests: ByteBudget,
        replies: ByteBudget,
        settings: LaneSettings,
        lane: Callable[[], pb.NegotiateResponse] = pb.NegotiateResponse,
    ) -> None:
        """`requests` and `replies` bound the bytes of data calls.

        `lane` tells where the bulk lane is now.
        """
        self._index = index
        self._store = store
        self._data = data
        self._requests = requests
        self._replies = replies
        self._lane = lane
        self._room_wait_s = settings.room_wait_s

    def CreateTables(
        self, request: pb.CreateTablesRequest, context: grpc.ServicerContext
    ) -> pb.CreateTablesResponse:
        with self._store.serving(request.run_id, request.is_controller_away):
            configs = [codec.table_from_proto(table) for table in request.tables]
            changes = self._store.create_tables(request.epoch, configs, request.allow_new_layout)

        kept = {name: change.kept for name, change in changes.items()}
        dropped = {name: change.dropped for name, change in changes.items()}

        return pb.CreateTablesResponse(kept=kept, dropped=dropped)

    def CreateVariables(
        self, request: pb.CreateVariablesRequest, context: grpc.ServicerContext
    ) -> pb.CreateVariablesResponse:
        with self._store.serving(request.run_id, request.is_controller_away):
            self._store.create_variables(
                request.epoch, [codec.variable_from_proto(item) for item in request.variables]
            )

        return pb.CreateVariablesResponse()

    def DescribeVariables(
        self, request: pb.DescribeVariablesRequest, context: grpc.ServicerContext
    ) -> pb.DescribeVariablesResponse:
        with self._store.serving(request.run_id, request.is_controller_away):
            shapes = self._store.describe_variables(request.epoch, request.names)

        return pb.DescribeVariablesResponse(
            variables=[codec.variable_shape_to_proto(shape) for shape in shapes]
        )

    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> pb.PullResponse:
        with self._counted(request), self._replies.share() as room:
            ids = [part.ids for part in request.tables]

            def reserve(nbytes: int) -> None:
                room.take(nbytes, self._room_wait_s)

            reply, rows = self._data.pull(request, ids, reserve)
            reply.rows.extend(arrays.encode(matrix) for matrix in rows)

        return reply

    def Push(self, request: pb.PushRequest, context: grpc.ServicerContext) -> pb.PushResponse:
        ids = [part.ids for part in request.tables]
        gradients = [part.gradients for part in request.tables]

        with self._counted(request):
            return self._data.push(request, ids, gradients)

    def AssignRows(
        self, request: pb.AssignRowsRequest, context: grpc.ServicerContext
    ) -> pb.AssignRowsResponse:
        with self._counted(request):
            self._data.assign(request)
        return pb.AssignRowsResponse()

    def ReinitializeRows(
        self, request: pb.ReinitializeRowsRequest, context: grpc.ServicerContext
    ) -> pb.ReinitializeRowsResponse:
        with self._counted(request):
            status = self._data.reinitialize(request)
        return pb.ReinitializeRowsResponse(status=arrays.encode(status))

    def PutBlob(
        self, request: pb.PutBlobRequest, context: grpc.ServicerContext
    ) -> pb.PutBlobResponse:
        with self._counted(request):
            self._data.put_blob(request)
        return pb.PutBlobResponse()

    def GetBlob(
        self, request: pb.GetBlobRequest, context: grpc.ServicerContext
    ) -> pb.GetBlobResponse:
        with self._counted(request), self._replies.share() as room:
            data = self._data.get_blob(request)
            room.take(len(data), self._room_wait_s)
            return pb.GetBlobResponse(data=data)

    def ListBlobs(
        self, request: pb.ListBlobsRequest, context: grpc.ServicerContext
    ) -> pb.ListBlobsResponse:
        with self._store.serving(request.run_id, request.is_controller_away):
            return pb.ListBlobsResponse(sizes=self._store.blob_sizes(request.epoch))

    def DropBlob(
        self, request: pb.DropBlobRequest, context: grpc.ServicerContext
    ) -> pb.DropBlobResponse:
        with self._store.serving(request.run_id, request.is_controller_away):
            dropped = self._store.drop_blob(request.epoch, request.name)

        return pb.DropBlobResponse(was_here=dropped is not None, bytes=dropped or 0)

    def _counted(
        self,
        request: pb.PullRequest
        | pb.PutBlobRequest
        | pb.GetBlobRequest
        | pb.PushRequest
        | pb.AssignRowsRequest
        | pb.ReinitializeRowsRequest,
    ) -> AbstractContextManager[None]:
        """Inside, the request's bytes count in the budget; a full one is waited for first."""
        return self._requests.holding(request.ByteSize(), self._room_wait_s)

    def Negotiate(
        self, request: pb.NegotiateRequest, context: grpc.ServicerContext
    ) -> pb.NegotiateResponse:
        self._store.check_run(request.run_id)
        return self._lane()

    def Expire(self, request: pb.ExpireRequest, context: grpc.ServicerContext) -> pb.ExpireResponse:
        self._store.check_run(request.run_id)
        return pb.ExpireResponse(dropped=self._store.expire())

    def DropTable(
        self, request: pb.DropTableRequest, context: grpc.ServicerContext
    ) -> pb.DropTableResponse:
        self._store.check_run(request.run_id)
        rows = self._store.drop_table(request.table)
        if rows is None:
            return pb.DropTableResponse(was_here=False)

        return pb.DropTableResponse(was_here=True, rows=rows)

    def GetPsStatus(
        self, request: pb.GetPsStatusRequest, context: grpc.ServicerContext
    ) -> pb.GetPsStatusResponse:
        if request.run_id:  # an operator who only looks may not know it
            self._store.check_run(request.run_id)

        return pb.GetPsStatusResponse(
            index=self._index,
            epoch=self._store.epoch,
            tables=[self._encode_status(table) for table in self._store.tables()],
            variables=[variable.config.part_name for variable in self._store.variables()],
            variables_nonfinite={
                variable.config.part_name: variable.nonfinite
                for variable in self._store.variables()
                if variable.nonfinite
            },
            run_id=self._store.run_id,
        )

    def _encode_status(self, table: EmbeddingTable) -> pb.TableStatus:
        stats = table.stats()
        counts = {name: getattr(stats, name) for name in table_counts.NAMES}
        is_claimed = self._store.is_claimed(table.config.name)

        return pb.TableStatus(
            config=codec.table_to_proto(table.config),
            is_unclaimed=not is_claimed,
            **counts,
        )
