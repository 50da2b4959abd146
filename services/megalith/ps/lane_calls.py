"""Pulls and pushes of the bulk lane, from a frame to the data plane and back."""

from megalith.errors import InvalidRequest
from megalith.protos import parameter_server_pb2 as pb
from megalith.ps.data_plane import DataPlane
from megalith.runtime.lane.calls import Reply, Reserve, cut
from megalith.wire import frames


class PsLaneCalls:
    """What a ps answers on the bulk lane."""

    def __init__(self, data: DataPlane) -> None:
        self._data = data

    def call(self, request: pb.LaneRequest, body: memoryview, reserve: Reserve) -> Reply:
        """The reply to a pull or push, and its arrays."""
        match request.WhichOneof("call"):
            case "pull":
                pull = request.pull
                ids = cut(body, request.array_bytes, len(pull.tables))
                pulled, rows = self._data.pull(pull, ids, reserve)

                sizes = [matrix.nbytes for matrix in rows]
                sent = [frames.as_bytes(matrix) for matrix in rows]
                return pb.LaneReply(pull=pulled, array_bytes=sizes), sent

            case "push":
                push = request.push
                count = len(push.tables)
                arrays = cut(body, request.array_bytes, 2 * count)

                ids = arrays[:count]
                gradients = arrays[count:]
                pushed = self._data.push(push, ids, gradients)
                return pb.LaneReply(push=pushed), ()

            case _:
                raise InvalidRequest("a LaneRequest without a call of this version for a ps")
