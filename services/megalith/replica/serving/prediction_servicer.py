"""gRPC face of what a replica computes: decode, one call, encode."""

from collections.abc import Iterable

import grpc
import numpy as np

from megalith.errors import DtypeMismatch, DuplicateIds, MalformedArray, NonFiniteValue
from megalith.kernels.dtypes import F32
from megalith.protos import common_pb2, prediction_pb2_grpc
from megalith.protos import prediction_pb2 as pb
from megalith.replica.copies.view import CopyFreshness
from megalith.replica.predicting.feature_messages import features_from_proto
from megalith.replica.predicting.prediction import Predictions, Predictor
from megalith.replica.predicting.served_task import LayoutArrays, ServedExamples
from megalith.replica.serving.servicer import freshness_to_proto
from megalith.wire import arrays, codec


class PredictionServicer(prediction_pb2_grpc.PredictionServicer):
    """Layouts and predictions of one replica."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def Features(
        self, request: pb.FeaturesRequest, context: grpc.ServicerContext
    ) -> pb.FeaturesResponse:
        layouts, fresh = layouts_of(self._predictor, request)
        reply = pb.FeaturesResponse(freshness=freshness_to_proto(fresh))

        for name, parts in layouts.items():
            encoded = [codec.array_to_proto(part) for part in parts]
            reply.layouts.add(layout=name, arrays=encoded)

        return reply

    def Predict(
        self, request: pb.PredictRequest, context: grpc.ServicerContext
    ) -> pb.PredictResponse:
        found = predicted(self._predictor, request)
        return pb.PredictResponse(
            predictions=arrays.encode(found.values),
            freshness=freshness_to_proto(found.freshness),
            missing=found.missing,
        )


def layouts_of(
    predictor: Predictor, request: pb.FeaturesRequest
) -> tuple[LayoutArrays, CopyFreshness]:
    """The arrays that a request asks for."""
    features = features_from_proto(request.features)
    return predictor.layouts(features, request.layouts, request.max_staleness_us / 1e6)


def predicted(predictor: Predictor, request: pb.PredictRequest) -> Predictions:
    """What the task says of the examples of a request."""
    examples = ServedExamples(
        features_from_proto(request.features),
        _dense(request.dense) if request.HasField("dense") else None,
        _dense_columns(request.dense_columns),
    )
    return predictor.predict(examples, request.max_staleness_us / 1e6)


def _dense(message: common_pb2.Array) -> F32:
    array = codec.array_from_proto(message, "dense")
    if array.dtype != np.float32:
        raise DtypeMismatch(f"dense: numbers are {array.dtype}, expected float32")

    is_bad = ~np.isfinite(array)
    if is_bad.any():
        raise NonFiniteValue(
            f"dense: {np.count_nonzero(is_bad)} of {array.size} numbers are NaN or infinite; give "
            "columns by name, with None for a number that is missing"
        )

    return array


def _dense_columns(messages: Iterable[pb.DenseValues]) -> dict[str, F32]:
    columns: dict[str, F32] = {}
    for message in messages:
        name = message.column
        what = f"dense column {name}"
        if name in columns:
            raise DuplicateIds(f"{what} is given twice")

        if len(message.values) % arrays.VALUE.itemsize:
            raise MalformedArray(f"{what}: {len(message.values)} bytes are no float32 numbers")

        columns[name] = np.frombuffer(message.values, arrays.VALUE)
        num_infinite = np.count_nonzero(np.isinf(columns[name]))
        if num_infinite:
            raise NonFiniteValue(
                f"{what}: {num_infinite} of {columns[name].size} numbers are infinite; None or NaN "
                "stands for a number that is missing"
            )

    return columns
