"""A pull or push to one server: the message without its arrays, the arrays, and where those of the reply go."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import frames
from megalith.wire.errors import MalformedArray, PeerUnreachable

# The memory for array number i of a reply, given its length in bytes; a length that cannot be is MalformedArray.
Sink = Callable[[int, int], memoryview]
Reply = pb.PullResponse | pb.PushResponse


def no_arrays(place: int, nbytes: int) -> memoryview:
    """The sink of a call whose reply has no arrays."""
    raise MalformedArray(f"the reply has an array of {nbytes} bytes that nobody asked for")


@dataclass(slots=True)
class DataCall:
    """What both lanes send. `arrays` are in the order of LaneRequest: the keys of each table, then the gradients.

    The reply has `num_received` arrays, which go to the memory that `sink` gives.
    """

    message: pb.PullRequest | pb.PushRequest
    arrays: Sequence[NDArray[Any]]
    num_received: int = 0
    sink: Sink = no_arrays

    @property
    def epoch(self) -> int:
        return self.message.epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self.message.epoch = value

    @property
    def run_id(self) -> str:
        return self.message.run_id

    @run_id.setter
    def run_id(self, value: str) -> None:
        self.message.run_id = value

    @property
    def is_repeated(self) -> bool:
        """Whether an earlier try may have reached the server; of a push."""
        return isinstance(self.message, pb.PushRequest) and self.message.is_repeated

    @is_repeated.setter
    def is_repeated(self, value: bool) -> None:
        if isinstance(self.message, pb.PushRequest):
            self.message.is_repeated = value

    @property
    def first_try_ms_ago(self) -> int:
        """How long ago the first try of a repeated push was sent; 0 = not known."""
        return self.message.first_try_ms_ago if isinstance(self.message, pb.PushRequest) else 0

    @first_try_ms_ago.setter
    def first_try_ms_ago(self, value: int) -> None:
        if isinstance(self.message, pb.PushRequest):
            self.message.first_try_ms_ago = value

    @property
    def is_controller_away(self) -> bool:
        return self.message.is_controller_away

    @is_controller_away.setter
    def is_controller_away(self, value: bool) -> None:
        self.message.is_controller_away = value

    def ByteSize(self) -> int:  # the name that protobuf gives it
        return self.message.ByteSize() + sum(array.nbytes for array in self.arrays)

    def whole_message(self) -> pb.PullRequest | pb.PushRequest:
        """The message with its arrays, for a unary call."""
        if isinstance(self.message, pb.PullRequest):
            pull = pb.PullRequest()
            pull.CopyFrom(self.message)
            for part, keys in zip(pull.tables, self.arrays, strict=True):
                part.keys = keys.tobytes()
            return pull
        push = pb.PushRequest()
        push.CopyFrom(self.message)
        count = len(push.tables)
        for gradients, keys, values in zip(
            push.tables, self.arrays[:count], self.arrays[count:], strict=True
        ):
            gradients.keys, gradients.gradients = keys.tobytes(), values.tobytes()
        return push

    def take(self, reply: Reply) -> None:
        """Put the arrays of a unary reply where they belong."""
        if isinstance(reply, pb.PullResponse):
            self.check_received(len(reply.rows))
            for place, data in enumerate(reply.rows):
                self.sink(place, len(data))[:] = data

    def check_received(self, count: int) -> None:
        """Raise unless a reply has as many arrays as this call asked for."""
        if count != self.num_received:
            raise MalformedArray(
                f"the reply has {count} arrays, {self.num_received} were asked for"
            )

    def body(self) -> list[memoryview]:
        return [frames.as_bytes(array) for array in self.arrays]


class NotSent(PeerUnreachable):
    """There was no connection to send a call on: no server has seen it. Stays within the SDK."""


class Started(Protocol):
    """A call that is on its way."""

    def finish(self, deadline: float) -> Any:
        """Wait for the reply until `deadline`, on the monotonic clock, or raise what went wrong."""

    def abandon(self) -> None:
        """Give the call up, if it has not been finished."""
