"""The bulk lane of a ps: framed TCP connections, a thread for each.

Threads, because a connection is a client's thread that waits for its answer: while one is in a
kernel or a socket call, neither of which holds the GIL, the others go on.
"""

import logging
import socket
import threading
import time
from collections import Counter

from megalith.errors import DeadlinePassed, MegalithError, Overloaded
from megalith.runtime.lane.calls import LaneCalls
from megalith.runtime.lane.connection import BufferPool, LaneConnection
from megalith.runtime.lane.settings import LaneSettings
from megalith.runtime.process import file_limit
from megalith.runtime.rpc.binding import cannot_listen
from megalith.wire import frames
from megalith.wire.budget import ByteBudget

logger = logging.getLogger(__name__)


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
        """`requests` bounds the bytes of requests until they are answered.

        `replies` bounds those of replies until they are sent.
        """
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
            raise cannot_listen(host, "lane_port", self._wanted_port) from error

        self.port = self._listener.getsockname()[1]
        threading.Thread(
            target=self._accept, args=(self._listener,), name="lane-accept", daemon=True
        ).start()

    def stop(self, grace_s: float) -> None:
        """Accept no more, let requests that have come be answered for at most `grace_s`, close."""
        deadline = time.monotonic() + grace_s
        with self._lock:
            self._is_stopping = True
            open_now = dict(self._connections)

        if self._listener is not None:
            _shut(self._listener, socket.SHUT_RDWR)
            self._listener.close()

        for sock in open_now:
            # Ends the wait for the next request, not the answer to the current one
            _shut(sock, socket.SHUT_RD)

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
        """Give a connection its thread, or turn it away.

        The thread is started under the lock: who finds one there joins it.
        """
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

        most = self._settings.lane_connections_per_peer
        if self._count_by_peer[peer] >= most:
            return Overloaded(f"{most} connections of {peer} are open; use unary calls")

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
            LaneConnection(
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


def _shut(sock: socket.socket, how: int) -> None:
    try:
        sock.shutdown(how)
    except OSError:  # it ended by itself meanwhile
        logger.debug("a lane socket was closed already")
