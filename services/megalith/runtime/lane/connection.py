"""One connection of the bulk lane: frames in, frames out, each piece in time.

The memory that requests are read into is shared by all connections.
"""

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from megalith.errors import (
    AccessDenied,
    InvalidRequest,
    LimitExceeded,
    MegalithError,
    MessageTooLarge,
)
from megalith.runtime.lane.calls import LaneCalls, Reply
from megalith.runtime.lane.settings import LaneSettings
from megalith.wire import frames
from megalith.wire.budget import ByteBudget, Share

# Between requests, over all connections: fresh memory costs a page fault every 4 KB.
_KEPT_BYTES = 64 << 20
_LARGEST_KEPT = 16 << 20
_SMALLEST = 1 << 16

_HELLO_BYTES = 4096
# A request is counted, and its peer timed, piece by piece. The first piece is small: all that a
# peer which announces much and sends nothing can hold. The others are large, because each is a
# system call that fights for the GIL.
_FIRST_PIECE_BYTES = 256 << 10
_PIECE_BYTES = 1 << 20


class BufferPool:
    """Buffers that no request uses now, the newest last; `_lock` guards them.

    An idle connection holds none, so what is kept does not grow with the connections.
    """

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._limit = kept_bytes
        self._lock = threading.Lock()
        self._kept: list[NDArray[np.uint8]] = []
        self.kept_bytes = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """A buffer of at least `nbytes`, with anything in it."""
        with self._lock:
            for position in reversed(range(len(self._kept))):
                if self._kept[position].nbytes >= nbytes:
                    buffer = self._kept.pop(position)
                    self.kept_bytes -= buffer.nbytes
                    return buffer

        # A power of two, so that requests of about the same size use each other's. Pages that
        # nobody writes cost none.
        return np.empty(max(_SMALLEST, 1 << (nbytes - 1).bit_length()), np.uint8)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        with self._lock:
            if buffer.nbytes <= _LARGEST_KEPT and self.kept_bytes + buffer.nbytes <= self._limit:
                self._kept.append(buffer)
                self.kept_bytes += buffer.nbytes


class LaneConnection:
    """One client's connection: a request, its answer, the next one."""

    def __init__(
        self,
        sock: socket.socket,
        calls: LaneCalls,
        max_message_bytes: int,
        requests: ByteBudget,
        replies: ByteBudget,
        buffers: BufferPool,
        settings: LaneSettings,
    ) -> None:
        self._sock = sock
        self._calls = calls
        self._max_message_bytes = max_message_bytes
        self._requests = requests
        self._replies = replies
        self._buffers = buffers
        self._settings = settings
        self._unread = 0  # bytes of the frame that are still to be received

    def run(self) -> None:
        """Until the peer closes.

        An error after which nobody knows where the next frame begins ends it too.
        """
        frames.set_send_timeout(self._sock, self._settings.lane_reply_s)
        frames.set_receive_timeout(self._sock, self._settings.lane_hello_s)
        if not self._greet(time.monotonic() + self._settings.lane_hello_s):
            return

        while True:
            frames.set_receive_timeout(self._sock, 0)
            sizes = self._next_frame()

            if sizes is None:
                return

            frames.set_receive_timeout(self._sock, self._settings.lane_stall_s)
            self._answer(sizes, time.monotonic())

    def _next_frame(self, deadline: float | None = None) -> frames.Sizes | None:
        try:
            return frames.receive_sizes(self._sock, deadline)
        except InvalidRequest as error:
            self._refuse("lane", error)
            return None

    def _greet(self, deadline: float) -> bool:
        sizes = self._next_frame(deadline)
        if sizes is None:
            return False

        try:
            if sizes.head > _HELLO_BYTES or sizes.body:
                raise InvalidRequest("a connection of the bulk lane starts with a LaneHello")

            head = memoryview(bytearray(sizes.head))
            frames.receive_into(self._sock, head, deadline)
            self._calls.check_hello(head)
        except (InvalidRequest, AccessDenied) as error:
            self._refuse("lane/hello", error)
            return False

        frames.send(self._sock, b"")
        return True

    def _answer(self, sizes: frames.Sizes, began: float) -> None:
        self._unread = sizes.head + sizes.body
        try:
            self._check(sizes)

            with self._replies.share() as reply_room:
                reply, arrays = self._compute(sizes, began, reply_room)

                # The request's bytes are free by now: a client may send its next one before it
                # takes this reply.
                megabytes = sum(array.nbytes for array in arrays) >> 20
                allowed_s = self._settings.lane_reply_s * (1 + megabytes)
                deadline = time.monotonic() + allowed_s

                head = reply.SerializeToString()
                frames.send(self._sock, head, arrays, deadline)
        except LimitExceeded as error:
            self._refuse("lane", error)
            self._discard()

    def _check(self, sizes: frames.Sizes) -> None:
        total = sizes.head + sizes.body
        if total > self._max_message_bytes:
            raise MessageTooLarge(
                f"a request of {total} bytes is above the limit of {self._max_message_bytes}; "
                "send fewer ids per call, or raise --max-message-bytes"
            )

        if sizes.head > frames.MAX_HEAD_BYTES:
            raise MessageTooLarge(
                f"{sizes.head} bytes before the arrays are above the limit of "
                f"{frames.MAX_HEAD_BYTES}; send variables of this size by unary calls"
            )

    def _compute(self, sizes: frames.Sizes, began: float, reply_room: Share) -> Reply:
        """Receive the request and answer it.

        Its memory is given back, that of the reply is in `reply_room`.
        """
        wait_s = self._settings.room_wait_s

        def reserve(nbytes: int) -> None:
            reply_room.take(nbytes, wait_s)

        begin = -(-sizes.head // 64) * 64
        buffer = self._buffers.take(begin + sizes.body)

        try:
            with self._requests.share() as room:
                head, body = self._receive(sizes, begin, buffer, room)

                waited_s = time.monotonic() - began
                return self._calls.answer(head, body, waited_s, reserve)
        finally:
            self._buffers.give_back(buffer)

    def _receive(
        self, sizes: frames.Sizes, begin: int, buffer: NDArray[np.uint8], room: Share
    ) -> tuple[memoryview, memoryview]:
        """Head and body of a frame. The body begins at `begin`, a multiple of 64 bytes."""
        view = frames.as_bytes(buffer)
        end = begin + sizes.body
        pieces = [*_pieces(0, sizes.head), *_pieces(begin, sizes.body)]

        for first, last in pieces:
            nbytes = last - first
            room.grow(nbytes, self._settings.room_wait_s)
            self._read(view[first:last])

        room.complete()

        received = view.toreadonly()
        head = received[: sizes.head]
        body = received[begin:end]
        return head, body

    def _read(self, target: memoryview) -> None:
        """The next bytes of the frame, which must come in time."""
        deadline = time.monotonic() + self._settings.lane_stall_s
        frames.receive_into(self._sock, target, deadline)
        self._unread -= target.nbytes

    def _discard(self) -> None:
        """Read on to the next frame."""
        scratch = memoryview(bytearray(1 << 16))
        while self._unread:
            size = min(self._unread, len(scratch))
            self._read(scratch[:size])

    def _refuse(self, method: str, error: MegalithError) -> None:
        reply = self._calls.refusal(method, error)
        frames.send(self._sock, reply.SerializeToString())


def _pieces(begin: int, size: int) -> Iterator[tuple[int, int]]:
    """Where the pieces of `size` bytes begin and end."""
    end = begin + size
    piece = _FIRST_PIECE_BYTES

    while begin < end:
        yield begin, min(begin + piece, end)
        begin += piece
        piece = _PIECE_BYTES
