"""Discovery through a Consul agent: each process is an instance of the service `<job>`.

It has the tags `index`, `name` and `ip`, and vanishes with its TTL, `ttl_s` (60 s) after its
process was last heard of. Without an agent in the URL, the variables `CONSUL_HTTP_HOST` or
`TCE_HOST_IP`, and `CONSUL_HTTP_PORT`, say where it is.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import consul
import tenacity

from megalith.discovery.back_end import Opener, Site
from megalith.discovery.consul_agent import (
    agent_address,
    errors_translated,
    is_unreachable,
    open_client,
)
from megalith.discovery.interface import (
    NAMES,
    AddressByIndex,
    Discovery,
    parse_index,
    warn_not_renewed,
)
from megalith.discovery.url import DiscoveryUrl, check_job
from megalith.errors import DiscoveryFailed
from megalith.wire import addresses
from megalith.wire.backoff import JitteredBackoff

logger = logging.getLogger(__name__)

_TTL_S = 60.0
_TRIES = 5
# For one request while closing: a process must not outlive its stop because of a hung agent
_CLOSE_S = 2.0
# Consul drops an instance whose check has been critical for this long; it allows no less
_FORGET_S = 60.0


class ConsulDiscovery(Discovery):
    """Entries of one job, the Consul service of that name.

    An entry that is not renewed for `ttl_s` is no longer listed. An instance has the tags
    `index:<i>`, `name:<n>` and `ip:<host>`. Registering returns once the entry is visible;
    DiscoveryFailed if it is not within `visible_s`. Works with a stock agent, over IPv6 and a unix
    socket too; Monolith needs a lookup that stock agents lack. Needs py-consul.
    """

    def __init__(
        self,
        agent: str,
        job: str,
        *,
        ttl_s: float = _TTL_S,
        timeout_s: float = 15.0,
        visible_s: float = 180.0,
        poll_s: float = 0.5,
        retry_wait_s: float = 5.0,
    ) -> None:
        super().__init__()
        self._agent = agent
        self._job = job
        self._ttl_s = ttl_s
        self._visible_s = visible_s
        self._poll_s = poll_s
        self._retry_wait_s = retry_wait_s
        self._client = open_client(agent, timeout_s)

        self._stopping = threading.Event()
        self._lock = threading.Lock()  # guards `_own`
        # Held while an own entry is renewed or removed, so that one that was removed is not entered
        # after it.
        self._renewing = threading.Lock()
        self._own: dict[tuple[str, int], str] = {}

        self._keeper = threading.Thread(target=self._keep, name="consul-keep", daemon=True)
        self._keeper.start()

    def _register(self, name: str, index: int, address: str) -> None:
        own_id = self._id(name, index, address)
        for service_id, node in self._instances_of(name, index):
            if service_id != own_id:
                self._remove(service_id, node)

        self._enter(name, index, address)
        with self._lock:
            self._own[name, index] = address

        self._wait_until_visible(name, index, address)

    def _wait_until_visible(self, name: str, index: int, address: str) -> None:
        deadline = time.monotonic() + self._visible_s
        while True:
            entries = self._query_all().get(name, {})
            if entries.get(index) == address:
                return

            is_late = time.monotonic() > deadline
            if is_late or self._stopping.wait(self._poll_s):
                break

        self._deregister(name, index, address)
        raise DiscoveryFailed(
            f"This machine is blacklisted by consul. {name}-{index} at {address} is "
            f"registered with the agent at {self._agent}, "
            f"but not visible after {self._visible_s:.0f} s"
        )

    def _deregister(self, name: str, index: int, address: str) -> None:
        with self._lock:
            if self._own.get((name, index)) == address:
                del self._own[name, index]

        own_id = self._id(name, index, address)
        with self._renewing:
            for service_id, node in self._instances_of(name, index):
                if service_id == own_id:
                    self._remove(service_id, node)

    def deregister_all(self) -> None:
        """Remove every entry of the job, also those of other processes."""
        with self._lock:
            self._own.clear()

        with self._renewing:
            for instance in self._instances(is_passing=False):
                service_id = instance["Service"]["ID"]
                node = instance["Node"]["Node"]
                self._remove(service_id, node)

    def _query_all(self) -> dict[str, AddressByIndex]:
        found: dict[str, AddressByIndex] = {}
        # Of two instances with one index, which only two agents can have, the one that was
        # registered last counts.
        instances = sorted(self._instances(is_passing=True), key=_registered_at)
        for instance in instances:
            service = instance["Service"]
            name, digits, host = _identity(service)
            index = parse_index(digits)

            if name not in NAMES or index is None:
                tags = service.get("Tags")
                self._ignore(service["ID"], str(tags), f"tags {tags}")
                continue

            listed = addresses.join(host, service.get("Port", 0))
            address = self._readable(service["ID"], listed)
            if address is not None:
                found.setdefault(name, {})[index] = address

        return found

    def close(self) -> None:
        if self._stopping.is_set():
            return

        self._stopping.set()
        self._client.http.connections_timeout = _CLOSE_S
        self._keeper.join(_CLOSE_S)

        # Taken away first: a renewal that hangs, and outlives this call, enters none of them again.
        with self._lock:
            own = dict(self._own)
            self._own.clear()

        for (name, index), address in own.items():
            service_id = self._id(name, index, address)
            try:
                self._ask_once(self._client.agent.service.deregister, service_id)
            except DiscoveryFailed as error:
                logger.warning(
                    "%s-%d stays listed at %s until its %g s are over: %s",
                    name,
                    index,
                    address,
                    self._ttl_s,
                    error,
                )

        self._client.http.session.close()

    # --- one instance ---

    def _enter(self, name: str, index: int, address: str) -> None:
        host, port = addresses.split(address)
        tags = [f"index:{index}", f"name:{name}", f"ip:{host}"]
        check = {
            "ttl": f"{self._ttl_s:g}s",
            "status": "passing",
            "DeregisterCriticalServiceAfter": f"{_FORGET_S:g}s",
        }

        self._ask(
            self._client.agent.service.register,
            self._job,
            service_id=self._id(name, index, address),
            address=host,
            port=port,
            tags=tags,
            check=check,
        )

    def _remove(self, service_id: str, node: str) -> None:
        """From the agent if it is ours.

        From the catalog if another one's agent has died with it.
        """
        self._ask(self._client.agent.service.deregister, service_id)

        for instance in self._instances(is_passing=False):
            if instance["Service"]["ID"] == service_id:
                self._ask(self._client.catalog.deregister, node, service_id=service_id)
                return

    def _keep(self) -> None:
        """Renew the TTL of own entries; an agent that has forgotten them is told again.

        Without this thread they would expire, so no error ends it.
        """
        usual_wait_s = self._ttl_s / 2
        retry_wait_s = min(2.0, self._ttl_s / 4)
        has_failed = False

        while not self._stopping.wait(retry_wait_s if has_failed else usual_wait_s):
            try:
                self._renew_own()
                has_failed = False
            except Exception as error:
                if not has_failed and not self._stopping.is_set():
                    warn_not_renewed(error, logger)
                has_failed = True

    def _renew_own(self) -> None:
        with self._lock:
            own = dict(self._own)

        for (name, index), address in own.items():
            with self._renewing:
                if self._is_own(name, index, address):
                    self._renew(name, index, address)

    def _is_own(self, name: str, index: int, address: str) -> bool:
        with self._lock:
            return self._own.get((name, index)) == address

    def _renew(self, name: str, index: int, address: str) -> None:
        check_id = f"service:{self._id(name, index, address)}"
        try:
            is_known = self._ask_once(self._client.agent.check.ttl_pass, check_id)
        except DiscoveryFailed as error:
            if not isinstance(error.__cause__, consul.ConsulException):
                raise

            is_known = False

        # An agent that answers, but does not know the check, was restarted.
        if not is_known and self._is_own(name, index, address):
            self._enter(name, index, address)

    def _id(self, name: str, index: int, address: str) -> str:
        return f"{self._job}-{name}-{index}-{address}"

    def _instances_of(self, name: str, index: int) -> list[tuple[str, str]]:
        """(id, node) of each instance with that name and index, also where the check has failed."""
        found = []
        for instance in self._instances(is_passing=False):
            service = instance["Service"]
            its_name, its_index, _ = _identity(service)
            if (its_name, its_index) == (name, str(index)):
                found.append((service["ID"], instance["Node"]["Node"]))

        return found

    def _instances(self, is_passing: bool) -> list[dict[str, Any]]:
        passing = True if is_passing else None  # None asks for all
        answer = self._ask(self._client.health.service, self._job, passing=passing)

        _, instances = answer
        return list(instances or ())

    def _ask(self, request: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """One request, repeated while the agent cannot be reached.

        Every request here is idempotent.
        """
        tries = tenacity.stop_after_attempt(_TRIES)
        closing = tenacity.stop_when_event_set(self._stopping)

        retrying = tenacity.Retrying(
            stop=tenacity.stop_any(tries, closing),
            wait=JitteredBackoff(self._retry_wait_s, longest_s=self._retry_wait_s),
            retry=tenacity.retry_if_exception(is_unreachable),
            sleep=tenacity.sleep_using_event(self._stopping),
            reraise=True,
        )
        return retrying(self._ask_once, request, *arguments, **options)

    def _ask_once(self, request: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with errors_translated(self._agent):
            return request(*arguments, **options)


def opener(url: DiscoveryUrl, site: Site) -> Opener:
    """`consul://host:port/job?ttl_s=60` or `consul+unix:///path/of/socket`.

    `consul:` and `consul:///job` leave the agent to the environment. The job may be left to --job;
    with a socket it is.
    """
    url.take_options("ttl_s")
    read = _read_unix if url.scheme == "consul+unix" else _read_tcp
    agent, job = read(url, site)
    ttl_s = url.seconds("ttl_s", _TTL_S)

    def connect() -> ConsulDiscovery:
        asked = agent or agent_address(site.environ)
        return ConsulDiscovery(asked, job, ttl_s=ttl_s)

    return Opener(open=connect, url=url.text, job=job)


def _read_tcp(url: DiscoveryUrl, site: Site) -> tuple[str, str]:
    """(agent or empty, job)."""
    if url.servers:
        url.check_server(url.servers)

    return url.servers, url.job(site)


def _read_unix(url: DiscoveryUrl, site: Site) -> tuple[str, str]:
    """(path of the socket, job)."""
    if url.servers or not url.path.startswith("/"):
        raise url.wrong("the path of the socket begins with a third slash")

    return url.path, check_job(site.job, f"--discovery={url.text}")


def _identity(service: Mapping[str, Any]) -> tuple[str, str, str]:
    """(name, index, ip) as the tags of an instance say; empty where they are silent."""
    said = {"name": "", "index": "", "ip": ""}
    for tag in service.get("Tags") or ():
        key, _, value = tag.partition(":")
        said[key] = value

    return said["name"], said["index"], said["ip"]


def _registered_at(instance: Mapping[str, Any]) -> int:
    return int(instance["Service"].get("CreateIndex", 0))
