"""The bulk lane of a ps: framed TCP connections, a thread for each.

Threads, because a connection is a client's thread that waits for its answer: while one is in a kernel or a socket call,
neither of which holds the GIL, the others go on.
"""

import logging
import socket
import threading
import time

import numpy as np

from megalith.ps.lane_calls import LaneCalls
from megalith.wire import frames
from megalith.wire.budget import ByteBudget
from megalith.wire.errors import InvalidRequest, InvalidSetting, LimitExceeded, MegalithError, MessageTooLarge

logger = logging.getLogger(__name__)

_STALL_S = 30.0  # a peer that neither sends nor takes a byte in mid-frame for this long is gone
_MAX_CONNECTIONS = 1024  # a thread each; a client has about one per thread that pulls or pushes
_KEPT_BYTES = 16 << 20  # of a connection's buffer between two requests
_HELLO_BYTES = 4096


class LaneServer:
    """Listens, and answers each connection on a thread of its own. `_lock` guards `_connections`, `_is_stopping`."""

    def __init__(self, host: str, port: int, calls: LaneCalls, max_message_bytes: int, budget: ByteBudget) -> None:
        self._host, self._wanted_port = host, port
        self._calls, self._max_message_bytes, self._budget = calls, max_message_bytes, budget
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._is_stopping = False
        self._listener: socket.socket | None = None
        self.port = 0

    def start(self) -> None:
        """Bind and accept in the background."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._listener = socket.create_server((self._host.strip("[]"), self._wanted_port), family=family)
        except OSError as error:
            raise InvalidSetting(
                f"--lane-port={self._wanted_port}: cannot listen on {self._host} ({error.strerror}); "
                "choose another port, or 0 for any free one"
            ) from error
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), name="lane-accept", daemon=True).start()

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
            _shut(sock, socket.SHUT_RD)  # ends the wait for the next request, not the answer to the current one
        for sock, thread in open_now.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            _shut(sock, socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                with self._lock:
                    if self._is_stopping:
                        return
                logger.exception("the bulk lane cannot accept")
                time.sleep(0.1)  # out of file descriptors: others are given back as connections end
                continue
            if not self._welcomed(sock):
                sock.close()

    def _welcomed(self, sock: socket.socket) -> bool:
        """Whether the connection has got its thread. Under the lock it is started too: who finds one there joins it."""
        thread = threading.Thread(target=self._serve, args=(sock,), name="lane", daemon=True)
        with self._lock:
            if self._is_stopping or len(self._connections) >= _MAX_CONNECTIONS:
                return False
            try:
                thread.start()
            except RuntimeError as error:  # the system gives no more threads
                logger.warning("the bulk lane refuses a connection: %s", error)
                return False
            self._connections[sock] = thread
            return True

    def _serve(self, sock: socket.socket) -> None:
        """The outer edge of a connection's thread."""
        try:
            frames.prepare(sock)
            _Connection(sock, self._calls, self._max_message_bytes, self._budget).run()
        except MegalithError as error:
            logger.debug("lane connection ended: %s", error)
        except Exception:
            logger.exception("lane connection failed")
        finally:
            with self._lock:
                self._connections.pop(sock, None)
            sock.close()


class _Connection:
    """One client's connection: a request, its answer, the next one. The buffer is kept between requests."""

    def __init__(self, sock: socket.socket, calls: LaneCalls, max_message_bytes: int, budget: ByteBudget) -> None:
        self._sock, self._calls, self._max_message_bytes, self._budget = sock, calls, max_message_bytes, budget
        self._buffer = np.empty(1 << 16, np.uint8)

    def run(self) -> None:
        """Until the peer closes. An error that leaves the place of the next frame unknown ends it too."""
        frames.set_timeout(self._sock, _STALL_S)
        if not self._greet():
            return
        while True:
            frames.set_timeout(self._sock, 0)
            sizes = self._next_frame()
            if sizes is None:
                return
            frames.set_timeout(self._sock, _STALL_S)
            self._answer(sizes, time.monotonic())

    def _next_frame(self) -> frames.Sizes | None:
        try:
            return frames.receive_sizes(self._sock)
        except InvalidRequest as error:
            self._refuse("lane", error)
            return None

    def _greet(self) -> bool:
        sizes = self._next_frame()
        if sizes is None:
            return False
        try:
            if sizes.head > _HELLO_BYTES or sizes.body:
                raise InvalidRequest("a connection of the bulk lane starts with a LaneHello")
            head, _ = self._receive(sizes)
            self._calls.check_hello(head)
        except MegalithError as error:
            self._refuse("lane/hello", error)
            return False
        frames.send(self._sock, b"")
        return True

    def _answer(self, sizes: frames.Sizes, began: float) -> None:
        total = sizes.head + sizes.body
        try:
            if total > self._max_message_bytes:
                raise MessageTooLarge(
                    f"a request of {total} bytes is above the limit of {self._max_message_bytes}; "
                    "send fewer ids per call, or raise --max-message-bytes"
                )
            with self._budget.holding(total, _STALL_S):
                head, body = self._receive(sizes)
                reply, arrays = self._calls.answer(head, body, time.monotonic() - began)
            # Without the budget: a client may send its next request before it takes this reply.
            frames.send(self._sock, reply.SerializeToString(), arrays)
        except LimitExceeded as error:
            self._refuse("lane", error)
            self._discard(total)
        if self._buffer.nbytes > _KEPT_BYTES:
            self._buffer = np.empty(_KEPT_BYTES, np.uint8)

    def _receive(self, sizes: frames.Sizes) -> tuple[memoryview, memoryview]:
        """Head and body of a frame, valid until the next one. The body begins at a multiple of 64 bytes."""
        begin = -(-sizes.head // 64) * 64
        if begin + sizes.body > self._buffer.nbytes:
            self._buffer = np.empty(begin + sizes.body, np.uint8)
        view = frames.as_bytes(self._buffer)
        frames.receive_into(self._sock, view[: sizes.head])
        frames.receive_into(self._sock, view[begin : begin + sizes.body])
        view = view.toreadonly()
        return view[: sizes.head], view[begin : begin + sizes.body]

    def _discard(self, count: int) -> None:
        """Read on to the next frame."""
        scratch = memoryview(bytearray(1 << 16))
        while count:
            part = scratch[: min(count, len(scratch))]
            frames.receive_into(self._sock, part)
            count -= len(part)

    def _refuse(self, method: str, error: MegalithError) -> None:
        frames.send(self._sock, self._calls.refusal(method, error).SerializeToString())


def _shut(sock: socket.socket, how: int) -> None:
    try:
        sock.shutdown(how)
    except OSError:  # it ended by itself meanwhile
        logger.debug("a lane socket was closed already")
