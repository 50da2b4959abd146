"""What is sent to one server: a pull or push with its arrays, or any other unary call.

A write has a number, by which a server tells a repeated write from a new one.
"""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from numpy.typing import NDArray

from megalith.errors import MalformedArray
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire import frames
from megalith.wire.lane import NotSent

Stub = parameter_server_pb2_grpc.ParameterServerStub

# The memory for array number i of a reply, given its length in bytes; a length that cannot be is
# MalformedArray.
Sink = Callable[[int, int], memoryview]


def no_arrays(number: int, nbytes: int) -> memoryview:
    """The sink of a call whose reply has no arrays."""
    raise MalformedArray(f"the reply has an array of {nbytes} bytes that nobody asked for")


@dataclass(slots=True)
class UnaryRequest:
    """A message and the method that it goes to."""

    method: Callable[[Stub], grpc.UnaryUnaryMultiCallable[Any, Any]]
    message: Any  # of any request that is routed: it has an epoch and a run_id

    @property
    def nbytes(self) -> int:
        size: int = self.message.ByteSize()
        return size


@dataclass(slots=True)
class DataCall:
    """A pull or push, whose arrays travel beside the message in the bulk lane.

    `arrays` are in the order of LaneRequest: the ids of each table, then the gradients. The reply
    has `num_received` arrays, which go to the memory that `sink` gives.
    """

    message: pb.PullRequest | pb.PushRequest
    arrays: Sequence[NDArray[Any]]
    num_received: int = 0
    sink: Sink = no_arrays

    @property
    def nbytes(self) -> int:
        return self.message.ByteSize() + sum(array.nbytes for array in self.arrays)

    def body(self) -> list[memoryview]:
        return [frames.as_bytes(array) for array in self.arrays]

    def lane_request(self) -> pb.LaneRequest:
        if isinstance(self.message, pb.PullRequest):
            return pb.LaneRequest(pull=self.message)

        return pb.LaneRequest(push=self.message)

    def lane_answer(self, reply: pb.LaneReply) -> pb.PullResponse | pb.PushResponse:
        return reply.pull if reply.WhichOneof("result") == "pull" else reply.push

    def whole_message(self) -> pb.PullRequest | pb.PushRequest:
        """The message with its arrays, for a unary call."""
        if isinstance(self.message, pb.PullRequest):
            pull = pb.PullRequest()
            pull.CopyFrom(self.message)
            for table, ids in zip(pull.tables, self.arrays, strict=True):
                table.ids = ids.tobytes()

            return pull

        push = pb.PushRequest()
        push.CopyFrom(self.message)

        count = len(push.tables)
        all_ids = self.arrays[:count]
        all_gradients = self.arrays[count:]

        for part, ids, gradients in zip(push.tables, all_ids, all_gradients, strict=True):
            part.ids = ids.tobytes()
            part.gradients = gradients.tobytes()

        return push

    def take(self, reply: pb.PullResponse | pb.PushResponse) -> None:
        """Put the arrays of a unary reply where they belong."""
        if not isinstance(reply, pb.PullResponse):
            return

        self.check_received(len(reply.rows))
        for number, data in enumerate(reply.rows):
            memory = self.sink(number, len(data))
            memory[:] = data

    def check_received(self, count: int) -> None:
        """Raise unless a reply has as many arrays as this call asked for."""
        if count != self.num_received:
            raise MalformedArray(
                f"the reply has {count} arrays, {self.num_received} were asked for"
            )


Request = DataCall | UnaryRequest


class CallOnItsWay(Protocol):
    """A request that was sent to one server: a `LaneCall` or a `UnaryCall`."""

    def has_reply(self) -> bool:
        """Whether `finish` would have something to read at once."""

    def finish(self, deadline: float) -> Any:
        """Wait for the reply until `deadline`, on the monotonic clock, or raise what went wrong."""

    def abandon(self) -> None:
        """Give the call up, if it has not been finished."""


class UnaryCall:
    """A unary call that is on its way; `data` takes the arrays of its reply."""

    def __init__(self, future: Any, address: str, data: DataCall | None) -> None:
        self._future = future
        self._address = address
        self._data = data

    def has_reply(self) -> bool:
        is_done: bool = self._future.done()
        return is_done

    def finish(self, deadline: float) -> Any:
        """The deadline is the one that the call was sent with."""
        try:
            reply = self._future.result()
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and _was_not_sent(error):
                raise NotSent(f"ps at {self._address}: {error.details()}") from error
            raise

        if self._data is not None:
            self._data.take(reply)

        return reply

    def abandon(self) -> None:
        self._future.cancel()


def _was_not_sent(error: grpc.Call) -> bool:
    """Whether grpc had no connection to send the call on; it says so in these words only."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False

    details = error.details() or ""
    return details.startswith("failed to connect to all addresses")


class WriteNumbers:
    """Stamps writes with the client's name and with their number at each server.

    Not thread-safe: writes of a client are sent one at a time.
    """

    def __init__(self) -> None:
        self._client_id = secrets.token_hex(8)
        self._incarnation = secrets.randbits(64)
        self._last_by_ps: dict[int, int] = {}

    def stamp(self, requests: Mapping[int, Request]) -> None:
        """Each request is the next write to its ps index."""
        for index, request in requests.items():
            number = self._last_by_ps.get(index, 0) + 1
            self._last_by_ps[index] = number

            message = request.message
            message.client_id = self._client_id  # type: ignore[union-attr]  # writes have it
            message.incarnation = self._incarnation  # type: ignore[union-attr]
            message.sequence = number  # type: ignore[union-attr]
