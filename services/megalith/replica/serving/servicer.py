"""gRPC face of a replica: decode, one call, encode."""

from collections.abc import Callable

import grpc

from megalith.protos import replica_pb2 as pb
from megalith.protos import replica_pb2_grpc
from megalith.replica.copies.cluster_copy import ClusterCopy
from megalith.replica.copies.exported_copy import ExportedCopy
from megalith.replica.copies.following import Following
from megalith.replica.copies.model import ServedTable
from megalith.replica.copies.view import CopyFreshness
from megalith.replica.serving.lookups import Lookups
from megalith.wire import arrays, codec


class ReplicaServicer(replica_pb2_grpc.ReplicaServicer):
    """Lookups of one replica."""

    def __init__(
        self,
        index: int,
        copy: ClusterCopy | ExportedCopy,
        lookups: Lookups,
        lane_terms: Callable[[], pb.OpenLaneResponse],
    ) -> None:
        """`lane_terms` tells where the bulk lane is now."""
        self._index = index
        self._copy = copy
        self._lookups = lookups
        self._lane_terms = lane_terms

    def Lookup(self, request: pb.LookupRequest, context: grpc.ServicerContext) -> pb.LookupResponse:
        ids = [part.ids for part in request.tables]
        rows, fresh = self._lookups.look_up(request, ids, _take_any)
        encoded = [arrays.encode(matrix) for matrix in rows]
        dims = [matrix.shape[1] for matrix in rows]
        return pb.LookupResponse(rows=encoded, freshness=freshness_to_proto(fresh), dims=dims)

    def OpenLane(
        self, request: pb.OpenLaneRequest, context: grpc.ServicerContext
    ) -> pb.OpenLaneResponse:
        return self._lane_terms()

    def ReadVariables(
        self, request: pb.ReadVariablesRequest, context: grpc.ServicerContext
    ) -> pb.ReadVariablesResponse:
        view = self._copy.view(request.max_staleness_us / 1e6)
        values = [codec.array_to_proto(view.variable(name)) for name in request.names]
        fresh = freshness_to_proto(view.freshness)
        return pb.ReadVariablesResponse(values=values, freshness=fresh)

    def Pin(self, request: pb.PinRequest, context: grpc.ServicerContext) -> pb.PinResponse:
        self._copy.pin()
        return pb.PinResponse(freshness=freshness_to_proto(self._copy.freshness()))

    def Unpin(self, request: pb.UnpinRequest, context: grpc.ServicerContext) -> pb.UnpinResponse:
        self._copy.unpin()
        return pb.UnpinResponse(freshness=freshness_to_proto(self._copy.freshness()))

    def RollBack(
        self, request: pb.RollBackRequest, context: grpc.ServicerContext
    ) -> pb.RollBackResponse:
        self._copy.roll_back(request.checkpoint)
        return pb.RollBackResponse(freshness=freshness_to_proto(self._copy.freshness()))

    def GetReplicaStatus(
        self, request: pb.GetReplicaStatusRequest, context: grpc.ServicerContext
    ) -> pb.GetReplicaStatusResponse:
        copy = self._copy
        freshness = freshness_to_proto(copy.freshness()) if copy.is_ready else None
        return pb.GetReplicaStatusResponse(
            index=self._index,
            is_ready=copy.is_ready,
            freshness=freshness,
            tables=[_table(served) for served in copy.model.tables],
            variables=copy.model.variables,
            ps=[_followed(following, copy) for following in copy.followings],
            rows=copy.model.rows,
            bytes=copy.model.nbytes,
            started_from=copy.started_from,
            hold=copy.hold,
        )


def _take_any(nbytes: int) -> None:
    """A unary reply is bounded by the size of messages and the number of threads."""


def freshness_to_proto(value: CopyFreshness) -> pb.Freshness:
    return pb.Freshness(
        staleness_us=int(value.staleness_s * 1e6),
        versions=value.versions,
        run_id=value.run_id,
        newest_data_s=value.newest_data_s,
        exported_model=value.exported_model,
        checkpoint=value.checkpoint,
        is_pinned=value.is_pinned,
    )


def _table(served: ServedTable) -> pb.ServedTable:
    return pb.ServedTable(
        config=codec.table_to_proto(served.table.config),
        rows=len(served.table),
        bytes=served.table.nbytes,
        row_bytes=served.table.row_bytes,
        is_whole=served.is_whole,
    )


def _followed(following: Following, copy: ClusterCopy | ExportedCopy) -> pb.FollowedPs:
    counts = following.copy.counts
    return pb.FollowedPs(
        index=following.copy.index,
        address=following.process.address,
        is_connected=following.is_connected,
        version=following.copy.version,
        staleness_us=int(copy.staleness_of(following.copy) * 1e6),
        resumed=counts.resumed,
        resumed_from_save=counts.resumed_from_save,
        snapshots=counts.snapshots,
        rows_applied=counts.rows_applied,
        rows_dropped=counts.rows_dropped,
        bytes_received=counts.bytes_received,
        complaint=following.complaint,
    )
