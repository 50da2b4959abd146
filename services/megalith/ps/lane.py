"""The bulk lane of a ps: framed TCP connections, a thread for each.

Threads, because a connection is a client's thread that waits for its answer: while one is in a kernel or a socket call,
neither of which holds the GIL, the others go on.
"""

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.ps.buffers import BufferPool
from megalith.ps.lane_calls import LaneCalls, Reply
from megalith.runtime import file_limit
from megalith.runtime.settings import setting
from megalith.wire import frames
from megalith.wire.budget import ByteBudget, Share
from megalith.wire.errors import (
    AccessDenied,
    DeadlinePassed,
    InvalidRequest,
    InvalidSetting,
    LimitExceeded,
    MegalithError,
    MessageTooLarge,
    Overloaded,
)

logger = logging.getLogger(__name__)

_HELLO_BYTES = 4096
# A request is counted, and its peer timed, piece by piece. The first piece is small: all that a peer which announces
# much and sends nothing can hold. The others are large, because each is a system call that fights for the GIL.
_FIRST_PIECE_BYTES = 256 << 10
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """What the bulk lane of a ps lets its peers take."""

    lane_connections: int = setting(
        "Connections of the bulk lane at once, a thread each; who finds none left is served by unary calls.",
        4096,
    )
    lane_connections_per_peer: int = setting("The same, of one machine.", 2048)
    lane_hello_s: float = setting(
        "Seconds that a new connection of the bulk lane has to show its token.", 5.0
    )
    lane_stall_s: float = setting(
        "Seconds that a client has for each megabyte of a request before its connection is closed.",
        10.0,
    )
    lane_reply_s: float = setting(
        "Seconds that a client may leave a reply unread, and has for each megabyte of it.", 30.0
    )
    room_wait_s: float = setting(
        "Seconds that a data request waits for room under --max-inflight-bytes before it is refused as overloaded; "
        "clients then try again.",
        10.0,
    )

    def __post_init__(self) -> None:
        for name in ("lane_connections", "lane_connections_per_peer"):
            if getattr(self, name) < 1:
                raise InvalidSetting(
                    f"--{name.replace('_', '-')}={getattr(self, name)}: at least 1 is needed"
                )
        for name in ("lane_hello_s", "lane_stall_s", "lane_reply_s", "room_wait_s"):
            if not getattr(self, name) > 0:
                raise InvalidSetting(
                    f"--{name.replace('_', '-')}={getattr(self, name)}: must be above 0"
                )


class LaneServer:
    """Listens, and answers each connection on a thread of its own.

    `_lock` guards `_connections`, `_count_by_peer`, `_is_full` and `_is_stopping`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        calls: LaneCalls,
        max_message_bytes: int,
        requests: ByteBudget,
        replies: ByteBudget,
        settings: LaneSettings,
    ) -> None:
        """`requests` bounds the bytes of requests until they are answered, `replies` those of replies until sent."""
        self._host = host
        self._wanted_port = port
        self._calls = calls
        self._max_message_bytes = max_message_bytes
        self._requests = requests
        self._replies = replies
        self._settings = settings
        self._max_connections = settings.lane_connections
        self._buffers = BufferPool()
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._count_by_peer: Counter[str] = Counter()
        self._is_full = False
        self._is_stopping = False
        self._listener: socket.socket | None = None
        self.port = 0

    def start(self) -> None:
        """Bind and accept in the background."""
        self._max_connections = file_limit.room_for(
            self._settings.lane_connections, "connections of the bulk lane"
        )
        host = self._host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server(
                (host, self._wanted_port),
                family=family,
                dualstack_ipv6=host == "::",  # every address of the machine, as gRPC understands it
            )
        except OSError as error:
            raise InvalidSetting(
                f"--lane-port={self._wanted_port}: cannot listen on {self._host} ({error.strerror}); "
                "choose another port, or 0 for any free one"
            ) from error
        self.port = self._listener.getsockname()[1]
        threading.Thread(
            target=self._accept, args=(self._listener,), name="lane-accept", daemon=True
        ).start()

    def stop(self, grace_s: float) -> None:
        """Accept no more, let requests under way be answered for at most `grace_s`, close."""
        deadline = time.monotonic() + grace_s
        with self._lock:
            self._is_stopping = True
            open_now = dict(self._connections)
        if self._listener is not None:
            _shut(self._listener, socket.SHUT_RDWR)
            self._listener.close()
        for sock in open_now:
            _shut(
                sock, socket.SHUT_RD
            )  # ends the wait for the next request, not the answer to the current one
        for sock, thread in open_now.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            _shut(sock, socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, address = listener.accept()
            except OSError:
                with self._lock:
                    if self._is_stopping:
                        return
                logger.exception("the bulk lane cannot accept")
                time.sleep(0.1)  # out of file descriptors: others are given back as connections end
                continue
            self._welcome(sock, address[0].removeprefix("::ffff:"))

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        """Give a connection its thread, or turn it away. Under the lock it is started: who finds one there joins it."""
        thread = threading.Thread(target=self._serve, args=(sock, peer), name="lane", daemon=True)
        with self._lock:
            refusal = self._refusal(peer)
            if refusal is None:
                try:
                    thread.start()
                    self._connections[sock] = thread
                    self._count_by_peer[peer] += 1
                except RuntimeError as error:
                    refusal = Overloaded(f"the system gives no more threads: {error}")
            was_full = self._is_full
            self._is_full = refusal is not None
        if refusal is not None:
            if not was_full:
                logger.warning(
                    "the bulk lane refuses connections, the next from %s: %s", peer, refusal
                )
            self._turn_away(sock, refusal)

    def _refusal(self, peer: str) -> Overloaded | None:
        """Why no connection of this peer is taken now; `_lock` is held."""
        if self._is_stopping:
            return Overloaded("the server stops")
        if len(self._connections) >= self._max_connections:
            return Overloaded(f"{self._max_connections} connections are open; use unary calls")
        if self._count_by_peer[peer] >= self._settings.lane_connections_per_peer:
            return Overloaded(
                f"{self._settings.lane_connections_per_peer} connections of {peer} are open; use unary calls"
            )
        return None

    def _turn_away(self, sock: socket.socket, error: Overloaded) -> None:
        """Say why, as far as that needs no waiting, and close."""
        reply = self._calls.refusal("lane/hello", error)
        try:
            sock.setblocking(False)
            frames.send(sock, reply.SerializeToString())
        except (MegalithError, OSError):
            logger.debug("a connection was turned away without a word")
        _shut(sock, socket.SHUT_WR)
        sock.close()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        """The outer edge of a connection's thread."""
        try:
            frames.prepare(sock)
            _Connection(
                sock,
                self._calls,
                self._max_message_bytes,
                self._requests,
                self._replies,
                self._buffers,
                self._settings,
            ).run()
        except DeadlinePassed as error:
            self._calls.refusal("lane", error)  # counts it
            logger.info("a lane connection of %s is closed because it is too slow: %s", peer, error)
        except MegalithError as error:
            logger.debug("lane connection ended: %s", error)
        except Exception:
            logger.exception("lane connection failed")
        finally:
            with self._lock:
                self._connections.pop(sock, None)
                self._count_by_peer[peer] -= 1
                if not self._count_by_peer[peer]:
                    del self._count_by_peer[peer]
            sock.close()


class _Connection:
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
        """Until the peer closes. An error that leaves the place of the next frame unknown ends it too."""
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
                # The request's bytes are free by now: a client may send its next one before it takes this reply.
                megabytes = sum(array.nbytes for array in arrays) >> 20
                deadline = time.monotonic() + self._settings.lane_reply_s * (1 + megabytes)
                frames.send(self._sock, reply.SerializeToString(), arrays, deadline)
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
                f"{sizes.head} bytes before the arrays are above the limit of {frames.MAX_HEAD_BYTES}; "
                "send variables of this size by unary calls"
            )

    def _compute(self, sizes: frames.Sizes, began: float, reply_room: Share) -> Reply:
        """Receive the request and answer it; its memory is given back, that of the reply is in `reply_room`."""
        wait_s = self._settings.room_wait_s
        begin = -(-sizes.head // 64) * 64
        buffer = self._buffers.take(begin + sizes.body)
        try:
            with self._requests.share() as room:
                head, body = self._receive(sizes, begin, buffer, room)
                waited_s = time.monotonic() - began
                return self._calls.answer(
                    head, body, waited_s, lambda nbytes: reply_room.take(nbytes, wait_s)
                )
        finally:
            self._buffers.give_back(buffer)

    def _receive(
        self, sizes: frames.Sizes, begin: int, buffer: NDArray[np.uint8], room: Share
    ) -> tuple[memoryview, memoryview]:
        """Head and body of a frame. The body begins at `begin`, a multiple of 64 bytes."""
        view = frames.as_bytes(buffer)
        for first, last in (*_pieces(0, sizes.head), *_pieces(begin, sizes.body)):
            room.grow(last - first, self._settings.room_wait_s)
            self._read(view[first:last])
        room.complete()
        view = view.toreadonly()
        return view[: sizes.head], view[begin : begin + sizes.body]

    def _read(self, target: memoryview) -> None:
        """The next bytes of the frame, which must come in time."""
        frames.receive_into(self._sock, target, time.monotonic() + self._settings.lane_stall_s)
        self._unread -= target.nbytes

    def _discard(self) -> None:
        """Read on to the next frame."""
        scratch = memoryview(bytearray(1 << 16))
        while self._unread:
            self._read(scratch[: min(self._unread, len(scratch))])

    def _refuse(self, method: str, error: MegalithError) -> None:
        frames.send(self._sock, self._calls.refusal(method, error).SerializeToString())


def _pieces(begin: int, size: int) -> Iterator[tuple[int, int]]:
    """Where the pieces of `size` bytes begin and end."""
    end = begin + size
    piece = _FIRST_PIECE_BYTES
    while begin < end:
        yield begin, min(begin + piece, end)
        begin += piece
        piece = _PIECE_BYTES


def _shut(sock: socket.socket, how: int) -> None:
    try:
        sock.shutdown(how)
    except OSError:  # it ended by itself meanwhile
        logger.debug("a lane socket was closed already")
