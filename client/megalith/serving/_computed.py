"""What the task of a replica computes: layouts and predictions, over either way."""

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from megalith.errors import MalformedArray
from megalith.protos import parameter_server_pb2 as lane_pb
from megalith.protos import prediction_pb2 as pb
from megalith.protos import replica_pb2
from megalith.serving._answers import F32
from megalith.wire import arrays, codec, frames

Computable = TypeVar("Computable", bound=pb.FeaturesRequest | pb.PredictRequest)
Layouts = dict[str, tuple[F32, ...]]


class _Computed(Generic[Computable]):
    """A request without arrays, and those behind its reply, as bytes."""

    def __init__(self, request: Computable) -> None:
        self._request = request
        self._arrays: dict[int, NDArray[np.uint8]] = {}

    @property
    def head_bytes(self) -> int:
        return self._request.ByteSize()

    @property
    def nbytes(self) -> int:
        return self.head_bytes

    def message(self) -> Computable:
        return self._request

    def body(self) -> list[memoryview]:
        """Nothing travels behind the request."""
        return []

    def check_received(self, count: int) -> None:
        """How many there must be, the message says; it is read after them."""

    def sink(self, number: int, nbytes: int, /) -> memoryview:
        array = np.empty(nbytes, np.uint8)
        self._arrays[number] = array
        return frames.as_bytes(array)

    def received(self, expected: int) -> list[memoryview]:
        """In their order; MalformedArray if there are not so many."""
        found = [frames.as_bytes(self._arrays[number]) for number in sorted(self._arrays)]
        if len(found) != expected:
            raise MalformedArray(f"the reply has {len(found)} arrays, its message has {expected}")

        return found


class FeaturesCall(_Computed[pb.FeaturesRequest]):
    """Asks for layouts; the answer has them, and how fresh they are."""

    def lane_request(self) -> lane_pb.LaneRequest:
        return lane_pb.LaneRequest(features=self._request)

    def lane_answer(self, reply: lane_pb.LaneReply) -> tuple[Layouts, replica_pb2.Freshness]:
        answer = reply.features
        count = sum(len(each.arrays) for each in answer.layouts)
        data = self.received(count)
        return _layouts(answer, data), answer.freshness

    def take(self, reply: pb.FeaturesResponse) -> tuple[Layouts, replica_pb2.Freshness]:
        data = [part.data for each in reply.layouts for part in each.arrays]
        return _layouts(reply, data), reply.freshness


def _layouts(answer: pb.FeaturesResponse, data: Any) -> Layouts:
    """`data` are the elements of all arrays, one after the other."""
    found = {}
    elements = iter(data)
    for each in answer.layouts:
        what = f"layout {each.layout}"
        parts = [codec.array_from_proto(part, what, next(elements)) for part in each.arrays]
        found[each.layout] = tuple(parts)

    return found


class PredictCall(_Computed[pb.PredictRequest]):
    """Asks for predictions; the answer has them, what is missing, and how fresh they are."""

    def lane_request(self) -> lane_pb.LaneRequest:
        return lane_pb.LaneRequest(predict=self._request)

    def lane_answer(self, reply: lane_pb.LaneReply) -> tuple[F32, pb.PredictResponse]:
        (data,) = self.received(1)
        return np.frombuffer(data, arrays.VALUE), reply.predict

    def take(self, reply: pb.PredictResponse) -> tuple[F32, pb.PredictResponse]:
        return np.frombuffer(reply.predictions, arrays.VALUE), reply
