"""One request of the bulk lane, from frame to frame.

Errors become LaneErrors, outcomes and times become metrics.
"""

import hmac
import time
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from megalith.errors import (
    AccessDenied,
    DeadlinePassed,
    InvalidRequest,
    LimitExceeded,
    MalformedArray,
    MessageTooLarge,
)
from megalith.protos import parameter_server_pb2 as pb
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.rpc.interceptor import as_megalith_error, bounded_text

_MAX_ARRAYS = 1 << 16

Reserve = Callable[[int], None]
Reply = tuple[pb.LaneReply, Sequence[memoryview]]
# What a server does with a request and the body of its frame. It reserves the bytes of the reply
# before it takes memory for them.
Call = Callable[[pb.LaneRequest, memoryview, Reserve], Reply]


class LaneCalls:
    """Answers the heads and bodies of frames by `call`; knows no sockets."""

    def __init__(self, call: Call, metrics: Metrics, token: bytes, max_message_bytes: int) -> None:
        self._call = call
        self._metrics = metrics
        self._token = token
        self._max_message_bytes = max_message_bytes

    def check_hello(self, head: memoryview) -> None:
        """Raise AccessDenied unless the token is that of this server."""
        hello = pb.LaneHello()
        if not _parse(hello, head) or not hmac.compare_digest(hello.token, self._token):
            raise AccessDenied(
                "the bulk lane opens with the token of this server's Negotiate; ask for it again"
            )

    def answer(
        self, head: memoryview, body: memoryview, waited_s: float, reserve: Reserve
    ) -> Reply:
        """The reply to one request that waited for `waited_s` before this. Never raises.

        `reserve` is told the bytes of a reply before any memory is taken for it, and may refuse
        them.
        """
        method = "lane"
        start = time.perf_counter()
        try:
            request = pb.LaneRequest()
            if not _parse(request, head):
                raise InvalidRequest("the head of the frame is not a LaneRequest")

            method = f"lane/{request.WhichOneof('call')}"

            if 0 < request.timeout_ms < waited_s * 1000:
                raise DeadlinePassed(
                    f"the call waited {waited_s:.1f} s and was given up; nothing was applied"
                )

            reply, arrays = self._call(request, body, reserve)
            self._check_size(reply, arrays)
        except Exception as error:
            return self.refusal(method, error), ()
        finally:
            self._metrics.rpc_seconds.labels(method).observe(time.perf_counter() - start)

        self._metrics.rpc_total.labels(method, "ok").inc()
        return reply, arrays

    def refusal(self, method: str, error: Exception) -> pb.LaneReply:
        """The reply that stands for an error."""
        known = as_megalith_error(method, error)
        self._metrics.rpc_total.labels(method, known.code).inc()

        message = bounded_text(str(known))
        error_message = pb.LaneError(code=known.code, message=message)
        return pb.LaneReply(error=error_message)

    def _check_size(self, reply: pb.LaneReply, arrays: Sequence[memoryview]) -> None:
        body_bytes = sum(array.nbytes for array in arrays)
        size = reply.ByteSize() + body_bytes
        if size > self._max_message_bytes:
            raise MessageTooLarge(
                f"a reply of {size} bytes is above the limit of {self._max_message_bytes}; "
                "ask for fewer ids per call"
            )


def _parse(message: pb.LaneHello | pb.LaneRequest, head: memoryview) -> bool:
    try:
        message.ParseFromString(bytes(head))
    except DecodeError:
        return False

    return True


def cut(body: memoryview, lengths: Sequence[int], expected: int) -> list[memoryview]:
    """The arrays of a body, which they must fill exactly.

    They are counted first: each costs many times its length.
    """
    if len(lengths) != expected:
        raise MalformedArray(
            f"{len(lengths)} arrays in the body, the tables of the request have {expected}"
        )

    if expected > _MAX_ARRAYS:
        raise LimitExceeded(
            f"{expected} arrays in one request are above the limit of {_MAX_ARRAYS}; split the call"
        )

    if any(length < 0 for length in lengths) or sum(lengths) != len(body):
        raise MalformedArray(f"arrays of {sum(lengths)} bytes in a body of {len(body)}")

    arrays = []
    begin = 0
    for length in lengths:
        arrays.append(body[begin : begin + length])
        begin += length

    return arrays
