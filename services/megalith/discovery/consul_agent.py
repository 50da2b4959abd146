"""The agent of Consul on this machine: where it is, how it is reached, what its errors mean."""

import contextlib
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping
from typing import Any

import consul
import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

from megalith.errors import DiscoveryFailed, InvalidSetting
from megalith.wire import addresses

_SOCKET = "/opt/tmp/sock/consul.sock"
_PORT = "2280"  # of the platform's agent; a stock one listens on 8500


def agent_address(environ: Mapping[str, str], socket_path: str = _SOCKET) -> str:
    """Where the agent is, as the environment says: host:port, or the path of a unix socket."""
    host = environ.get("CONSUL_HTTP_HOST") or environ.get("TCE_HOST_IP") or ""
    if not host:
        host = socket_path if _is_socket(socket_path) else "127.0.0.1"

    if host.startswith("/"):
        return host

    port = environ.get("CONSUL_HTTP_PORT") or _PORT
    if not port.isdecimal():
        raise InvalidSetting(f"CONSUL_HTTP_PORT={port!r}: expected a number")

    return addresses.join(host, int(port))


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def open_client(agent: str, timeout_s: float) -> consul.Consul:
    is_socket = agent.startswith("/")
    host, port = ("localhost", 80) if is_socket else addresses.split(agent)
    client = consul.Consul(
        host=f"[{host}]" if addresses.is_ipv6(host) else host,
        port=port,
        scheme="http",
        connections_timeout=timeout_s,
    )

    client.http.session.trust_env = False  # the agent is on this machine; a proxy is not asked
    if is_socket:
        client.http.session.mount("http://", _UnixAdapter(agent))

    return client


class _UnixAdapter(HTTPAdapter):
    """Sends every request of a session to one unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = urllib3.HTTPConnectionPool("localhost")
        self._pool.ConnectionCls = _connection_to(path)

    def get_connection_with_tls_context(
        self, *_arguments: Any, **_options: Any
    ) -> urllib3.HTTPConnectionPool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


def _connection_to(path: str) -> type[HTTPConnection]:
    """What urllib3 needs to speak through a unix socket: another way to get a connected one."""

    class UnixConnection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(self.timeout)
            try:
                connection.connect(path)
            except OSError as error:
                connection.close()
                raise urllib3.exceptions.NewConnectionError(self, f"{path}: {error}") from error

            return connection

    return UnixConnection


@contextlib.contextmanager
def errors_translated(agent: str) -> Iterator[None]:
    try:
        yield
    except (requests.RequestException, consul.ConsulException) as error:
        raise DiscoveryFailed(f"Consul agent {agent}: {_why(error)}") from error


def _why(error: Exception) -> str:
    """The reason alone: requests put the pool, the URL and the number of tries before it."""
    text = str(error)
    if isinstance(error, requests.ConnectionError | requests.Timeout):
        reason = text.rpartition(": ")[2]
        return re.sub(r"['\"]\)+$", "", reason)

    return text


def is_unreachable(error: BaseException) -> bool:
    return isinstance(error.__cause__, requests.RequestException)
