"""The gRPC side that all servers share: binding, health, reflection, metrics, draining."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import grpc
from grpc_health.v1 import health

from megalith.errors import InvalidSetting
from megalith.runtime.config.sections import LISTENING, TRAFFIC
from megalith.runtime.config.setting_checks import check_above_0, check_choices
from megalith.runtime.config.settings import flag_of, setting
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.monitoring.metrics_page import MetricsServer
from megalith.runtime.rpc.binding import cannot_listen
from megalith.runtime.rpc.health import Health
from megalith.runtime.rpc.interceptor import ErrorInterceptor
from megalith.runtime.rpc.reflection import Reflection
from megalith.runtime.rpc.silent_calls import CallPool, SilentCalls
from megalith.wire import addresses, channel

logger = logging.getLogger(__name__)

# For gRPC to end after it has cancelled its calls, which takes milliseconds
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a process listens."""

    SECTION: ClassVar = LISTENING

    host: str = setting(
        "Address to bind; 0.0.0.0 to be reachable from other machines. Empty = 127.0.0.1, or "
        "0.0.0.0 where --discovery prescribes an address that other machines use.",
        "",
    )
    port: int = setting("Port to bind; 0 takes a free one and reports it.", 0)
    advertise_host: str = setting(
        "Host that others are told; empty = the bound one, or this machine's address.", ""
    )
    metrics_port: int = setting("Port of the /metrics page; 0 takes a free one.", 0)
    max_message_bytes: int = setting(
        "Largest request or reply; a larger one costs memory, a smaller one more calls.",
        channel.DEFAULT_MAX_MESSAGE_BYTES,
        section=TRAFFIC,
    )
    rpc_threads: int = setting(
        "Calls answered at once; each costs a thread, and memory while it runs.",
        16,
        section=TRAFFIC,
    )
    max_waiting_calls: int = setting(
        "Calls that may wait for a thread; further ones are refused as overloaded, and clients "
        "try again.",
        256,
        section=TRAFFIC,
    )
    request_timeout_s: float = setting(
        "Seconds that a call has to send its message before it is given up.",
        30.0,
        section=TRAFFIC,
    )
    first_message_s: float = setting(
        "Seconds that a stream has to send its first message, such as a member's registration.",
        5.0,
        section=TRAFFIC,
    )
    log_level: str = setting(
        "Least severe lines that are logged.",
        "info",
        choices=("debug", "info", "warning", "error"),
        section="Options",
    )
    exit_with_stdin: bool = setting(
        "Exit when standard input closes: ends with the process that started this one.",
        False,
        section="Options",
    )

    def __post_init__(self) -> None:
        for name in ("port", "metrics_port"):
            port = getattr(self, name)
            if not 0 <= port <= 65535:
                raise InvalidSetting(f"{flag_of(name)}={port}: outside 0..65535")

        if self.max_message_bytes < 4096:
            raise InvalidSetting(f"--max-message-bytes={self.max_message_bytes}: below 4096")

        for name in ("rpc_threads", "max_waiting_calls"):
            count = getattr(self, name)
            if count < 1:
                raise InvalidSetting(f"{flag_of(name)}={count}: at least 1 is needed")

        check_above_0(self, "request_timeout_s", "first_message_s")
        check_choices(self)

    @property
    def bind_host(self) -> str:
        """The address that is really bound."""
        return self.host or "127.0.0.1"


class RpcServer:
    """A bound gRPC server with health and reflection, and its metrics page.

    Health is NOT_SERVING until `set_serving(True)`. A stop with calls under way waits for them for
    the grace, then cancels them.
    """

    def __init__(
        self,
        settings: ServerSettings,
        metrics: Metrics,
        services: Mapping[str, Callable[[grpc.Server], None]],
        extra_threads: int = 0,
    ) -> None:
        self._settings = settings
        self._metrics_server = MetricsServer(metrics, settings.bind_host, settings.metrics_port)
        self.port = 0
        self.metrics_port = 0

        num_threads = settings.rpc_threads + extra_threads
        threads = CallPool(num_threads, "rpc")

        request_s = settings.request_timeout_s
        first_message_s = settings.first_message_s
        self._silent = SilentCalls(threads, min(request_s, first_message_s))
        interceptor = ErrorInterceptor(metrics, self._silent, request_s, first_message_s)

        self._server = grpc.server(
            threads,
            interceptors=[interceptor],
            options=channel.server_options(settings.max_message_bytes),
            maximum_concurrent_rpcs=num_threads + settings.max_waiting_calls,
        )

        self._health = Health([*services, ""])
        self._health.add_to(self._server)
        for add in services.values():
            add(self._server)

        self._reflection = Reflection([*services, health.SERVICE_NAME])
        self._reflection.add_to(self._server)

    def start(self) -> None:
        """Bind both ports and answer. If the second cannot be bound, the first is given back."""
        host = self._settings.bind_host
        port = self._settings.port
        bind = addresses.join(host, port)
        try:
            self.port = self._server.add_insecure_port(bind)
        except RuntimeError as error:
            raise cannot_listen(host, "port", port) from error

        if host in addresses.WILDCARDS and addresses.is_loopback(self.address):
            logger.warning(
                "others are told %s, which only this machine reaches; set --advertise-host",
                self.address,
            )

        try:
            self.metrics_port = self._metrics_server.start()
            self._silent.start()
            self._reflection.start()
            self._server.start()
        except BaseException:
            self.stop(0)
            raise

    @property
    def address(self) -> str:
        """host:port as others reach this server; real only after start()."""
        return self._advertised(self.port)

    @property
    def metrics_address(self) -> str:
        return self._advertised(self.metrics_port)

    def _advertised(self, port: int) -> str:
        host = addresses.advertised_host(self._settings.bind_host, self._settings.advertise_host)
        return addresses.join(host, port)

    def set_serving(self, is_serving: bool) -> None:
        """What the health protocol answers."""
        self._health.set_serving(is_serving)

    def stop(self, grace_s: float) -> None:
        """Report NOT_SERVING, refuse new calls, give open ones `grace_s`, close both ports.

        gRPC that does not end is logged and left behind: what stops after it stops all the same.
        """
        self._health.shut_down()
        done: threading.Event = self._server.stop(grace_s)
        if not done.wait(grace_s + _END_S):
            logger.error("gRPC has not ended %.0f s after its calls were cancelled", _END_S)

        self._health.close()
        self._silent.stop()
        self._reflection.stop()
        self._metrics_server.stop()
