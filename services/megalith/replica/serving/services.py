"""The gRPC services of a replica."""

from collections.abc import Callable
from functools import partial

import grpc

from megalith.protos import prediction_pb2_grpc, replica_pb2_grpc
from megalith.replica.copies.cluster_copy import ClusterCopy
from megalith.replica.copies.exported_copy import ExportedCopy
from megalith.replica.predicting.prediction import Predictor
from megalith.replica.serving.lane import ReplicaLane
from megalith.replica.serving.lookups import Lookups
from megalith.replica.serving.prediction_servicer import PredictionServicer
from megalith.replica.serving.servicer import ReplicaServicer


def services_of(
    index: int,
    copy: ClusterCopy | ExportedCopy,
    lookups: Lookups,
    predictor: Predictor,
    lane: ReplicaLane,
) -> dict[str, Callable[[grpc.Server], None]]:
    """What adds each service to a server, by the name of the service."""
    rows = ReplicaServicer(index, copy, lookups, lane.terms)
    predictions = PredictionServicer(predictor)
    return {
        "megalith.v1.Replica": partial(replica_pb2_grpc.add_ReplicaServicer_to_server, rows),
        "megalith.v1.Prediction": partial(
            prediction_pb2_grpc.add_PredictionServicer_to_server, predictions
        ),
    }
