"""Frames of the bulk lane on a blocking socket.

A frame is a fixed start, a protobuf head, and a body of raw arrays.

    "MGL1" | uint32 bytes of the head | uint64 bytes of the body | head | body

Arrays are read into and sent from the caller's memory. Deadlines are socket options of the kernel
rather than Python timeouts: those make a socket non-blocking, and a megabyte then takes a dozen
calls, each fighting for the GIL.
"""

import errno
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from megalith.errors import DeadlinePassed, InvalidRequest, PeerUnreachable

MAGIC = b"MGL1"
_START = struct.Struct("<4sIQ")
# A head larger than this goes by a unary call: a few bytes of it can stand for many times their
# size once parsed.
MAX_HEAD_BYTES = 32 << 20
_TIMEVAL = struct.Struct("ll")
_MOST_PARTS = 1024  # IOV_MAX of Linux: what one sendmsg takes; more is EMSGSIZE
_LATE = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ETIMEDOUT, errno.EINPROGRESS)


class Sizes(NamedTuple):
    """What follows the start of a frame."""

    head: int
    body: int


def prepare(sock: socket.socket) -> None:
    """Options of both ends: small frames leave at once.

    The kernel sizes its buffers itself, better than we would.
    """
    sock.setblocking(True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def set_timeout(sock: socket.socket, seconds: float) -> None:
    """How long one read or write may wait; 0 = for ever.

    A shorter time than a microsecond is one.
    """
    set_receive_timeout(sock, seconds)
    set_send_timeout(sock, seconds)


def set_receive_timeout(sock: socket.socket, seconds: float) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def set_send_timeout(sock: socket.socket, seconds: float) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))


def _timeval(seconds: float) -> bytes:
    micros = int(seconds * 1e6)
    if seconds:
        micros = max(1, micros)  # 0 would be no limit at all

    whole, rest = divmod(micros, 1_000_000)
    return _TIMEVAL.pack(whole, rest)


def send(
    sock: socket.socket, head: bytes, body: Sequence[memoryview] = (), deadline: float | None = None
) -> None:
    """One whole frame, or PeerUnreachable or DeadlinePassed; the connection is then of no more use.

    `deadline`, on the monotonic clock, is for a peer that takes a byte now and then, which no
    timeout meets.
    """
    body_bytes = sum(part.nbytes for part in body)
    start = _START.pack(MAGIC, len(head), body_bytes)
    parts = [memoryview(start + head), *body]

    first = 0  # the part that the next byte is of
    try:
        while first < len(parts):
            sent = sock.sendmsg(parts[first : first + _MOST_PARTS])
            while first < len(parts) and sent >= parts[first].nbytes:
                sent -= parts[first].nbytes
                first += 1

            if sent:
                parts[first] = parts[first][sent:]
            is_left = first < len(parts)
            if deadline is not None and is_left and time.monotonic() > deadline:
                raise DeadlinePassed("the peer did not take all of a frame in time")
    except OSError as error:
        raise failure(error) from error


def receive_sizes(sock: socket.socket, deadline: float | None = None) -> Sizes | None:
    """The start of the next frame; None if the peer closed between two.

    Other bytes are an InvalidRequest.
    """
    start = memoryview(bytearray(_START.size))
    got = _receive(sock, start, deadline)
    if got == 0:
        return None
    if got < _START.size:
        raise PeerUnreachable("the connection was closed inside a frame")

    magic, head, body = _START.unpack(start)
    if magic != MAGIC:
        raise InvalidRequest(f"the bytes {magic!r} do not start a frame of the bulk lane")

    return Sizes(head, body)


def receive_into(sock: socket.socket, target: memoryview, deadline: float | None = None) -> None:
    """Fill all of `target`, which is a view of bytes.

    A peer that sends a byte now and then never meets the socket's timeout; it meets `deadline`,
    which is on the monotonic clock and is looked at whenever bytes have come.
    """
    if _receive(sock, target, deadline) < target.nbytes:
        raise PeerUnreachable("the connection was closed inside a frame")


def _receive(sock: socket.socket, target: memoryview, deadline: float | None) -> int:
    """Bytes read: fewer than asked for only when the peer closed."""
    got = 0
    try:
        while got < target.nbytes:
            count = sock.recv_into(target[got:], 0, socket.MSG_WAITALL)
            if count == 0:
                break

            got += count
            if deadline is not None and got < target.nbytes and time.monotonic() > deadline:
                raise DeadlinePassed(f"{got} of {target.nbytes} bytes came in time")
    except OSError as error:
        raise failure(error) from error

    return got


def failure(error: OSError) -> PeerUnreachable | DeadlinePassed:
    """What an error of the socket means to a caller."""
    if error.errno in _LATE or isinstance(error, TimeoutError):
        return DeadlinePassed("the peer did not take or send bytes in time")

    return PeerUnreachable(f"the connection is lost: {error.strerror or error}")


def as_bytes(array: Any) -> memoryview:
    """The memory of a contiguous array as bytes; an empty one too."""
    view = memoryview(array)
    return view.cast("B") if view.nbytes else memoryview(b"")
