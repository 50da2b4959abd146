"""Connections of the bulk lane to one server."""

import socket
import threading
import time
from typing import Any, Protocol

from megalith.errors import (
    AccessDenied,
    DeadlinePassed,
    MalformedArray,
    MegalithError,
    MessageTooLarge,
    Overloaded,
    PeerUnreachable,
    error_for,
)
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import forking, frames

_CONNECT_S = 5.0  # a port that a firewall drops must not take the caller's whole deadline
# A lane that had no room for one more connection is not asked for another one for so long.
_FULL_S = 1.0


class NotSent(PeerUnreachable):
    """There was no connection to send a call on: no server has seen it. Stays within the SDK."""


class LaneTerms(Protocol):
    """What a server says of its lane."""

    lane_port: int
    lane_token: bytes
    max_message_bytes: int


class LaneData(Protocol):
    """A call whose arrays travel behind its message."""

    @property
    def nbytes(self) -> int:
        """Of the message and its arrays."""

    def lane_request(self) -> pb.LaneRequest:
        """The message, without the sizes of arrays."""

    def body(self) -> list[memoryview]:
        """The arrays that are sent."""

    def check_received(self, count: int) -> None:
        """Raise unless a reply has as many arrays as this call asked for."""

    def sink(self, number: int, nbytes: int, /) -> memoryview:
        """Memory for an array of the reply."""

    def lane_answer(self, reply: pb.LaneReply) -> Any:
        """The part of a reply that answers it."""


class Lane:
    """Idle connections to one server, made as needed.

    A call has a connection for itself from request to reply. `_lock` guards `_idle`, `_full_until`
    and `_is_closed`.
    """

    def __init__(self, address: str, terms: LaneTerms, peer: str = "ps") -> None:
        """`peer` is what errors call the server."""
        self.address = address
        self.name = f"{peer} at {address}"
        self._terms = terms

        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._full_until = 0.0  # on the monotonic clock
        self._is_closed = False

        forking.renew_in_child(self)

    @property
    def token(self) -> bytes:
        """Of the process whose lane it is."""
        return self._terms.lane_token

    def renew_after_fork(self) -> None:
        """A forked child connects by itself.

        A reply on an inherited connection may be the parent's.
        """
        self._lock = threading.Lock()
        self._idle = []

    def start(self, call: LaneData, deadline: float) -> "LaneCall":
        """Send a call; its reply is still to be waited for.

        `deadline` is on the monotonic clock.
        """
        size = call.nbytes
        limit = self._terms.max_message_bytes
        if size > limit:
            raise MessageTooLarge(
                f"a request of {size} bytes is above the server's limit of {limit}; "
                "send fewer ids per call, or raise --max-message-bytes on the servers"
            )

        sock = self._connection(deadline)
        started = LaneCall(self, sock, call)
        try:
            started.send(deadline)
        except (PeerUnreachable, DeadlinePassed) as error:
            started.abandon()
            raise type(error)(f"{self.name}: {error}") from error
        except BaseException:
            started.abandon()
            raise

        return started

    def release(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(sock)
                return

        sock.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle = self._idle
            self._idle = []

        for sock in idle:
            sock.close()

    def _connection(self, deadline: float) -> socket.socket:
        idle = self._take_idle()
        if idle is None:
            return self._connect(deadline)

        if _is_silent(idle):
            return idle

        idle.close()
        raise NotSent(f"{self.name}: the server closed the connection before the call was sent")

    def _connect(self, deadline: float) -> socket.socket:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise DeadlinePassed("no time left to connect")

        timeout_s = min(left_s, _CONNECT_S)
        host = self.address.rpartition(":")[0].strip("[]")
        port = self._terms.lane_port
        try:
            sock = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise LaneClosed(f"no connection to the bulk lane at port {port}: {error}") from error

        forking.close_in_child(sock)

        try:
            self._greet(sock, timeout_s)
        except BaseException:
            sock.close()
            raise

        return sock

    def _greet(self, sock: socket.socket, timeout_s: float) -> None:
        hello = pb.LaneHello(token=self._terms.lane_token)
        try:
            frames.prepare(sock)
            frames.set_timeout(sock, timeout_s)
            frames.send(sock, hello.SerializeToString())
            _receive_reply(sock, None)
        except _Refused as refused:
            # Another server has the port now, or this one restarted.
            if isinstance(refused.error, AccessDenied):
                raise PeerUnreachable(f"{self.address}: {refused.error}") from None

            if isinstance(refused.error, Overloaded):
                raise self._full(refused.error) from None

            raise refused.error from None
        except (PeerUnreachable, DeadlinePassed) as error:
            raise self._full(error) from error

    def _take_idle(self) -> socket.socket | None:
        with self._lock:
            if self._idle:
                return self._idle.pop()

            if time.monotonic() < self._full_until:
                raise LaneFull("the bulk lane had no room for a connection a moment ago")

            return None

    def _full(self, error: MegalithError) -> "LaneFull":
        with self._lock:
            self._full_until = time.monotonic() + _FULL_S

        return LaneFull(
            f"the bulk lane at port {self._terms.lane_port} takes no more connections: {error}"
        )


class LaneFull(Exception):
    """The lane has no room for one more connection now; those it has are sound.

    Stays within the SDK.
    """


class LaneClosed(Exception):
    """The port of the lane does not take connections; unary calls may still pass.

    Stays within the SDK.
    """


class LaneCall:
    """One call on its connection, which goes back to the lane only after a whole reply."""

    def __init__(self, lane: Lane, sock: socket.socket, call: LaneData) -> None:
        self._lane = lane
        self._sock = sock
        self._call = call
        self._is_open = True
        self._timeout_s = 0.0

    def send(self, deadline: float) -> None:
        body = self._call.body()
        left_s = _left_s(deadline)
        head = self._call.lane_request()

        head.array_bytes.extend(part.nbytes for part in body)
        head.timeout_ms = max(1, int(left_s * 1000))

        frames.set_timeout(self._sock, left_s)
        self._timeout_s = left_s
        frames.send(self._sock, head.SerializeToString(), body)

    def has_reply(self) -> bool:
        """Whether there is something to read, be it the end of the connection."""
        return not _is_silent(self._sock)

    def finish(self, deadline: float) -> Any:
        try:
            left_s = _left_s(deadline)
            if left_s < 0.99 * self._timeout_s:  # else the option that is set is near enough
                frames.set_timeout(self._sock, left_s)

            reply = _receive_reply(self._sock, self._call)
        except _Refused as refused:  # a whole reply: the connection is sound
            self._release()
            raise refused.error from None
        except (PeerUnreachable, DeadlinePassed) as error:
            self.abandon()
            raise type(error)(f"{self._lane.name}: {error}") from error
        except BaseException:
            self.abandon()
            raise

        self._release()
        return self._call.lane_answer(reply)

    def abandon(self) -> None:
        """Close the connection: a server that has not received all of the call never begins it."""
        if self._is_open:
            self._is_open = False
            self._sock.close()

    def _release(self) -> None:
        self._is_open = False
        self._lane.release(self._sock)


def _is_silent(sock: socket.socket) -> bool:
    """Whether there is nothing to read on a connection; its end would be something.

    A call that is sent to a server which has gone may have reached it, for all that its sender can
    tell. So the end is looked for before.
    """
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False

    return False


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise DeadlinePassed("the call was given up")

    return left_s


class _Refused(Exception):
    """The server's answer is an error."""

    def __init__(self, error: MegalithError) -> None:
        super().__init__(str(error))
        self.error = error


def _receive_reply(sock: socket.socket, call: LaneData | None) -> pb.LaneReply:
    """A reply, its arrays put where the call says; without a call it has none."""
    sizes = frames.receive_sizes(sock)
    if sizes is None:
        raise PeerUnreachable("the server closed the connection")

    head = bytearray(sizes.head)
    frames.receive_into(sock, memoryview(head))
    reply = pb.LaneReply.FromString(bytes(head))

    if reply.HasField("error"):
        kind = error_for(reply.error.code)
        raise _Refused(kind(reply.error.message))

    total = sum(reply.array_bytes)
    if total != sizes.body or (call is None and sizes.body):
        raise MalformedArray(f"arrays of {total} bytes in a body of {sizes.body}")

    if call is not None:
        call.check_received(len(reply.array_bytes))

        for number, nbytes in enumerate(reply.array_bytes):
            memory = call.sink(number, nbytes)
            frames.receive_into(sock, memory)

    return reply
