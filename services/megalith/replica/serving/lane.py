"""The bulk lane of a replica: what it answers, without copies of the arrays."""

import secrets

import numpy as np

from megalith.errors import InvalidRequest
from megalith.protos import parameter_server_pb2 as lane_pb
from megalith.protos import prediction_pb2
from megalith.protos import replica_pb2 as pb
from megalith.replica.config import ReplicaConfig
from megalith.replica.predicting.prediction import Predictor
from megalith.replica.serving.lookups import Lookups
from megalith.replica.serving.prediction_servicer import layouts_of, predicted
from megalith.replica.serving.servicer import freshness_to_proto
from megalith.runtime.lane.calls import LaneCalls, Reply, Reserve, cut
from megalith.runtime.lane.server import LaneServer
from megalith.runtime.monitoring.metrics import Metrics
from megalith.wire import codec, frames
from megalith.wire.budget import ByteBudget


class ReplicaLane:
    """Listens once it is started, unless --bulk-lane says no."""

    def __init__(
        self, config: ReplicaConfig, lookups: Lookups, predictor: Predictor, metrics: Metrics
    ) -> None:
        self._is_offered = config.bulk_lane
        self._limit = config.server.max_message_bytes
        # Who may call OpenLane may use the lane: whatever guards unary calls guards it too.
        self._token = secrets.token_bytes(16)
        self._lookups = lookups
        self._predictor = predictor
        self._server = LaneServer(
            config.server.bind_host,
            config.lane_port,
            LaneCalls(self._call, metrics, self._token, self._limit),
            self._limit,
            ByteBudget(config.max_inflight_bytes),
            ByteBudget(config.max_inflight_bytes),
            config.lane,
        )

    def start(self) -> None:
        if self._is_offered:
            self._server.start()

    def stop(self, grace_s: float) -> None:
        self._server.stop(grace_s)

    def terms(self) -> pb.OpenLaneResponse:
        """Where it is; port 0 if there is none."""
        return pb.OpenLaneResponse(
            lane_port=self._server.port, lane_token=self._token, max_message_bytes=self._limit
        )

    def _call(self, request: lane_pb.LaneRequest, body: memoryview, reserve: Reserve) -> Reply:
        match request.WhichOneof("call"):
            case "lookup":
                return self._look_up(request, body, reserve)
            case "features":
                cut(body, request.array_bytes, 0)
                return self._layouts(request.features, reserve)
            case "predict":
                cut(body, request.array_bytes, 0)
                return self._predict(request.predict, reserve)
            case _:
                raise InvalidRequest(
                    "a replica answers lookups only, and what its task computes; pulls and pushes "
                    "are for a ps"
                )

    def _layouts(self, request: prediction_pb2.FeaturesRequest, reserve: Reserve) -> Reply:
        layouts, fresh = layouts_of(self._predictor, request)
        answer = prediction_pb2.FeaturesResponse(freshness=freshness_to_proto(fresh))
        sent = []
        for name, parts in layouts.items():
            packed = [np.ascontiguousarray(part) for part in parts]
            heads = [codec.array_head_to_proto(part) for part in packed]
            answer.layouts.add(layout=name, arrays=heads)
            sent += [frames.as_bytes(part) for part in packed]

        sizes = [part.nbytes for part in sent]
        reserve(sum(sizes))
        return lane_pb.LaneReply(features=answer, array_bytes=sizes), sent

    def _predict(self, request: prediction_pb2.PredictRequest, reserve: Reserve) -> Reply:
        found = predicted(self._predictor, request)
        answer = prediction_pb2.PredictResponse(
            freshness=freshness_to_proto(found.freshness), missing=found.missing
        )
        sent = frames.as_bytes(found.values)
        reserve(sent.nbytes)
        return lane_pb.LaneReply(predict=answer, array_bytes=[sent.nbytes]), [sent]

    def _look_up(self, request: lane_pb.LaneRequest, body: memoryview, reserve: Reserve) -> Reply:
        lookup = request.lookup
        ids = cut(body, request.array_bytes, len(lookup.tables))
        rows, fresh = self._lookups.look_up(lookup, ids, reserve)

        dims = [matrix.shape[1] for matrix in rows]
        answer = pb.LookupResponse(freshness=freshness_to_proto(fresh), dims=dims)
        sizes = [matrix.nbytes for matrix in rows]
        sent = [frames.as_bytes(matrix) for matrix in rows]

        return lane_pb.LaneReply(lookup=answer, array_bytes=sizes), sent
