"""The /metrics page of a server: a few short connections at once, whoever asks."""

import contextlib
import http.server
import logging
import socket
import socketserver
import threading
import time
from typing import Any

from prometheus_client import MetricsHandler

from megalith.errors import InvalidSetting
from megalith.runtime.monitoring.metrics import Metrics

logger = logging.getLogger(__name__)

_MAX_CONNECTIONS = 16  # a thread each; one more closes the oldest
_WAIT_S = 5.0  # for the next bytes of a request, or for the peer to take more of the page
_LIFE_S = 10.0  # of a connection, which is for one page
_PATHS = ("/", "/metrics")
_LOOK_S = 0.5


class MetricsServer:
    """The page and its port."""

    def __init__(self, metrics: Metrics, host: str, port: int, life_s: float = _LIFE_S) -> None:
        self._metrics = metrics
        self._host = host
        self._port = port
        self._life_s = life_s
        self._server: _Server | None = None

    def start(self) -> int:
        """Bind and serve in the background; returns the port really bound."""
        try:
            page = _Page.factory(self._metrics.registry)
            self._server = _Server(self._host, self._port, page, self._life_s)
        except OSError as error:
            raise InvalidSetting(
                f"--metrics-port={self._port}: "
                f"cannot listen on {self._host}:{self._port} ({error.strerror}); "
                "choose another port, or 0 for any free one"
            ) from error

        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_S,), name="metrics", daemon=True
        )
        self._thread.start()
        return int(self._server.server_address[1])

    def stop(self) -> None:
        if self._server is not None:
            # Wakes it up; by itself it looks twice a second whether it is to stop.
            _shut(self._server.socket)
            self._server.shutdown()
            self._server.server_close()
            self._server.close_connections()
            self._thread.join()
            self._server = None


class _Page(MetricsHandler):
    """Answers one request with the metrics."""

    timeout = _WAIT_S

    def do_GET(self) -> None:
        path, _, _ = self.path.partition("?")
        if path in _PATHS:
            super().do_GET()
        else:
            self.send_error(404, explain="The metrics are at /metrics.")


class _Server(socketserver.ThreadingTCPServer):
    """A thread for each connection.

    `_lock` guards `_began`, when each of them was accepted, the oldest first.
    """

    allow_reuse_address = True
    request_queue_size = 128
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, host: str, port: int, handler: type[http.server.BaseHTTPRequestHandler], life_s: float
    ) -> None:
        found = socket.getaddrinfo(
            host,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )

        family, _, _, _, address = found[0]
        bound_host = str(address[0])
        self.address_family = family
        self._is_every_address = host == "::"
        self._life_s = life_s
        self._lock = threading.Lock()
        self._began: dict[Any, float] = {}
        super().__init__((bound_host, port), handler)

    def server_bind(self) -> None:
        if self._is_every_address:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        oldest = None
        with self._lock:
            self._began[request] = time.monotonic()
            if len(self._began) > _MAX_CONNECTIONS:
                oldest = next(iter(self._began))
                del self._began[oldest]

        if oldest is not None:
            logger.debug("the metrics page closes its oldest connection")
            _shut(oldest)

        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between two connections, and twice a second: close those that are too old."""
        now = time.monotonic()
        with self._lock:
            old = []
            for request, began in self._began.items():
                if now - began > self._life_s:
                    old.append(request)

            for request in old:
                del self._began[request]

        for request in old:
            _shut(request)

    def close_connections(self) -> None:
        with self._lock:
            connections = list(self._began)

        for request in connections:
            _shut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a connection of the metrics page failed", exc_info=True)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
