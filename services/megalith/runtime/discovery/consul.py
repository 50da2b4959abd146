"""Discovery through a Consul agent: the job is a service, each process an instance with a TTL check."""

import contextlib
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import consul
import requests
import tenacity
import urllib3.connection
from requests.adapters import HTTPAdapter

from megalith.runtime import addresses
from megalith.runtime.discovery.interface import NAMES, Discovery, Entries, parse_index
from megalith.wire.errors import DiscoveryFailed

logger = logging.getLogger(__name__)

_SOCKET = "/opt/tmp/sock/consul.sock"
_PORT = "2280"  # of the platform's agent; a stock one listens on 8500
_TRIES = 5
_CLOSE_S = 2.0  # for one request while closing: a process must not outlive its stop because of a hung agent
_FORGET_S = (
    60.0  # Consul drops an instance whose check has been critical for this long; it allows no less
)


class ConsulDiscovery(Discovery):
    """Entries of one job, the Consul service of that name. One that is not renewed for `ttl_s` is no longer listed.

    An instance has the tags `index:<i>`, `name:<n>` and `ip:<host>`. Registering returns once the entry is visible;
    DiscoveryFailed if it is not within `visible_s`. Works with a stock agent, over IPv6 and a unix socket too; the
    reference needs a lookup that stock agents lack. Needs py-consul.
    """

    def __init__(
        self,
        agent: str,
        job: str,
        *,
        ttl_s: float = 60.0,
        timeout_s: float = 15.0,
        visible_s: float = 180.0,
        poll_s: float = 0.5,
        retry_wait_s: float = 5.0,
    ) -> None:
        super().__init__()
        self._agent, self._job, self._ttl_s = agent, job, ttl_s
        self._visible_s, self._poll_s, self._retry_wait_s = visible_s, poll_s, retry_wait_s
        self._client = _client(agent, timeout_s)
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards `_own`
        self._own: dict[tuple[str, int], str] = {}
        self._keeper = threading.Thread(target=self._keep, name="consul-keep", daemon=True)
        self._keeper.start()

    def _register(self, name: str, index: int, address: str) -> None:
        for service_id, node in self._instances_of(name, index):
            if service_id != self._id(name, index, address):
                self._remove(service_id, node)
        self._enter(name, index, address)
        with self._lock:
            self._own[name, index] = address
        deadline = time.monotonic() + self._visible_s
        while self._query_all().get(name, {}).get(index) != address:
            if time.monotonic() > deadline or self._stopping.wait(self._poll_s):
                self._deregister(name, index, address)
                raise DiscoveryFailed(
                    f"This machine is blacklisted by consul. {name} {index} at {address} is registered with the agent "
                    f"at {self._agent}, but not visible after {self._visible_s:.0f} s"
                )

    def _deregister(self, name: str, index: int, address: str) -> None:
        with self._lock:
            if self._own.get((name, index)) == address:
                del self._own[name, index]
        for service_id, node in self._instances_of(name, index):
            if service_id == self._id(name, index, address):
                self._remove(service_id, node)

    def deregister_all(self) -> None:
        """Remove every entry of the job, also those of other processes."""
        with self._lock:
            self._own.clear()
        for instance in self._instances(is_passing=False):
            self._remove(instance["Service"]["ID"], instance["Node"]["Node"])

    def _query_all(self) -> dict[str, Entries]:
        found: dict[str, Entries] = {}
        # Of two instances with one index, which only two agents can have, the one that was registered last counts.
        for instance in sorted(
            self._instances(is_passing=True),
            key=lambda one: int(one["Service"].get("CreateIndex", 0)),
        ):
            service = instance["Service"]
            name, digits, host = _identity(service)
            index = parse_index(digits)
            if name not in NAMES or index is None:
                self._ignore(service["ID"], str(service.get("Tags")), f"tags {service.get('Tags')}")
                continue
            address = self._readable(service["ID"], addresses.join(host, service.get("Port", 0)))
            if address is not None:
                found.setdefault(name, {})[index] = address
        return found

    def close(self) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._client.http.connections_timeout = _CLOSE_S
        self._keeper.join(_CLOSE_S)
        with self._lock:
            own = dict(self._own)
        for (name, index), address in own.items():
            with contextlib.suppress(DiscoveryFailed):
                self._ask_once(
                    self._client.agent.service.deregister, self._id(name, index, address)
                )
        self._client.http.session.close()

    # --- one instance ---

    def _enter(self, name: str, index: int, address: str) -> None:
        host, port = addresses.split(address)
        self._ask(
            self._client.agent.service.register,
            self._job,
            service_id=self._id(name, index, address),
            address=host,
            port=port,
            tags=[f"index:{index}", f"name:{name}", f"ip:{host}"],
            check={
                "ttl": f"{self._ttl_s:g}s",
                "status": "passing",
                "DeregisterCriticalServiceAfter": f"{_FORGET_S:g}s",
            },
        )

    def _remove(self, service_id: str, node: str) -> None:
        """From the agent if it is ours; from the catalog if another one's agent has died with it."""
        self._ask(self._client.agent.service.deregister, service_id)
        if any(
            service_id == instance["Service"]["ID"]
            for instance in self._instances(is_passing=False)
        ):
            self._ask(self._client.catalog.deregister, node, service_id=service_id)

    def _keep(self) -> None:
        """Renew the TTL of own entries; an agent that has forgotten them is told again.

        Without this thread they would expire, so no error ends it.
        """
        has_failed = False
        while not self._stopping.wait(min(2.0, self._ttl_s / 4) if has_failed else self._ttl_s / 2):
            with self._lock:
                own = dict(self._own)
            try:
                for (name, index), address in own.items():
                    self._renew(name, index, address)
                has_failed = False
            except Exception as error:
                if not has_failed and not self._stopping.is_set():
                    is_expected = isinstance(error, DiscoveryFailed)
                    logger.warning(
                        "own entries are not renewed, trying again: %s",
                        error,
                        exc_info=not is_expected,
                    )
                has_failed = True

    def _renew(self, name: str, index: int, address: str) -> None:
        try:
            self._ask_once(
                self._client.agent.check.ttl_pass, f"service:{self._id(name, index, address)}"
            )
        except DiscoveryFailed as error:
            if not isinstance(error.__cause__, consul.ConsulException):
                raise
            self._enter(
                name, index, address
            )  # it answers, but does not know the check: it was restarted

    def _id(self, name: str, index: int, address: str) -> str:
        return f"{self._job}-{name}-{index}-{address}"

    def _instances_of(self, name: str, index: int) -> list[tuple[str, str]]:
        """(id, node) of every instance with that name and index, also of those whose check has failed."""
        return [
            (instance["Service"]["ID"], instance["Node"]["Node"])
            for instance in self._instances(is_passing=False)
            if _identity(instance["Service"])[:2] == (name, str(index))
        ]

    def _instances(self, is_passing: bool) -> list[dict[str, Any]]:
        _, instances = self._ask(self._client.health.service, self._job, passing=is_passing or None)
        return list(instances or ())

    def _ask(self, request: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """One request, repeated while the agent cannot be reached. Every request here is idempotent."""
        return tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_random(0, self._retry_wait_s),
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error.__cause__, requests.RequestException)
            ),
            sleep=tenacity.sleep_using_event(self._stopping),
            reraise=True,
        )(self._ask_once, request, *arguments, **options)

    def _ask_once(self, request: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with _translated(self._agent):
            return request(*arguments, **options)


def agent_address(environ: Mapping[str, str], socket_path: str = _SOCKET) -> str:
    """Where the agent is, as the environment says: host:port, or the path of a unix socket."""
    host = environ.get("CONSUL_HTTP_HOST") or environ.get("TCE_HOST_IP") or ""
    if not host:
        host = socket_path if _is_socket(socket_path) else "127.0.0.1"
    return (
        host
        if host.startswith("/")
        else addresses.join(host, int(environ.get("CONSUL_HTTP_PORT") or _PORT))
    )


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _identity(service: Mapping[str, Any]) -> tuple[str, str, str]:
    """(name, index, ip) as the tags of an instance say; empty where they are silent."""
    tags = dict(tag.partition(":")[::2] for tag in service.get("Tags") or ())
    return tags.get("name", ""), tags.get("index", ""), tags.get("ip", "")


def _client(agent: str, timeout_s: float) -> consul.Consul:
    if agent.startswith("/"):
        client = consul.Consul(
            host="localhost", port=80, scheme="http", connections_timeout=timeout_s
        )
        client.http.session.mount("http://", _UnixAdapter(Path(agent)))
    else:
        host, port = addresses.split(agent)
        client = consul.Consul(
            host=f"[{host}]" if addresses.is_ipv6(host) else host,
            port=port,
            scheme="http",
            connections_timeout=timeout_s,
        )
    client.http.session.trust_env = False  # the agent is on this machine; a proxy is not asked
    return client


class _UnixConnection(urllib3.connection.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def _new_conn(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(15.0)
        try:
            connection.connect(str(self._path))
        except OSError as error:
            connection.close()
            raise urllib3.exceptions.NewConnectionError(self, f"{self._path}: {error}") from error
        return connection


class _UnixPool(urllib3.HTTPConnectionPool):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def _new_conn(self) -> _UnixConnection:
        return _UnixConnection(self._path, 15.0)


class _UnixAdapter(HTTPAdapter):
    """Sends every request of a session to one unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._pool = _UnixPool(path)

    def get_connection_with_tls_context(self, *_arguments: Any, **_options: Any) -> _UnixPool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


@contextlib.contextmanager
def _translated(agent: str) -> Iterator[None]:
    try:
        yield
    except (requests.RequestException, consul.ConsulException) as error:
        raise DiscoveryFailed(f"Consul agent {agent}: {error}") from error
