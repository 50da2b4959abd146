"""Discovery through ZooKeeper: an ephemeral node per process, `/monolith/<job>/<name>.<index>`, holding its address."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tenacity
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import make_acl

from megalith.runtime import addresses
from megalith.runtime.discovery.interface import Discovery, Entries, parse_entry
from megalith.wire.errors import Conflict, DiscoveryFailed

logger = logging.getLogger(__name__)

ROOT = "/monolith"
STALE_S = (
    9 * 7 * 24 * 3600.0
)  # nine weeks: what is older and empty was left behind by a job that is over

_PORT = 2181
_TRIES = 3
_CLOSE_S = 2.0  # for a request under way; with the client it ends for good
_PROMPT_RETRY_S = 5.0  # after a repair that failed
_GIVE_UP_TIMEOUTS = 3  # session time-outs without a connection before a new session is begun


class ZooKeeperDiscovery(Discovery):
    """Entries of one job. They vanish with the process: `session_timeout_s` after it was last heard of.

    Every `reregister_s`, and whenever the connection comes back, own entries are written again if they are missing or
    changed. Reads are answered from a view that watches keep fresh; while no server answers, the last view stands.
    A node that another session left behind is replaced, not overwritten as in the reference: overwritten it would
    vanish when that session expires.

    A node is removed only as it was looked at: one that was written meanwhile has another version, and stays. ZooKeeper
    compares nothing but the version, and each node begins with version 0. So a node that its owner removed and made
    again between our look and our request is removed too; its owner makes it once more, at the latest after
    `reregister_s`. Needs kazoo.
    """

    def __init__(
        self,
        servers: str,
        job: str,
        *,
        auth: str = "",
        session_timeout_s: float = 10.0,
        reregister_s: float = 1800.0,
        timeout_s: float = 10.0,
        retry_delay_s: float = 5.0,
    ) -> None:
        super().__init__()
        self._servers, self._root, self._timeout_s, self._retry_delay_s = (
            servers,
            f"{ROOT}/{job}",
            timeout_s,
            retry_delay_s,
        )
        self._reregister_s = reregister_s
        self._lock = threading.Lock()  # guards `_own`
        self._own: dict[tuple[str, int], str] = {}
        self._view_lock = threading.Lock()  # guards `_view`; held while it is read anew
        self._view: dict[str, Entries] | None = None
        self._is_stale = threading.Event()
        self._is_stale.set()
        self._is_connected, self._wake, self._stopping = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._session_timeout_s, self._auth = session_timeout_s, auth
        self._client = self._connect()
        self._keeper = threading.Thread(target=self._keep, name="zookeeper-keep", daemon=True)
        self._keeper.start()

    def _register(self, name: str, index: int, address: str) -> None:
        with self._lock:
            self._own[name, index] = address
        try:
            tenacity.Retrying(
                stop=tenacity.stop_after_attempt(_TRIES),
                wait=tenacity.wait_exponential(multiplier=self._retry_delay_s),
                retry=tenacity.retry_if_exception_type(DiscoveryFailed),
                sleep=tenacity.sleep_using_event(self._stopping),
                reraise=True,
            )(self._write, name, index, address)
        except DiscoveryFailed:
            logger.warning("server_type: %s , index:%d register fail", name, index)
            with self._lock:
                self._own.pop((name, index), None)
            raise

    def _deregister(self, name: str, index: int, address: str) -> None:
        with self._lock:
            if self._own.get((name, index)) == address:
                del self._own[name, index]
        path = self._path(name, index)
        try:
            content, stat = self._ask(self._client.get_async, path)
            if content.decode(errors="replace") == address:
                self._ask(self._client.delete_async, path, version=stat.version)
        except NoNodeError:
            logger.info("deregistered what was not there path=%s", path)
        except BadVersionError:
            logger.info("not deregistered, it was written again meanwhile path=%s", path)
        self._is_stale.set()

    def _query_all(self) -> dict[str, Entries]:
        with self._view_lock:
            # Without a connection an old view is better than a wait.
            if self._view is None or (self._is_stale.is_set() and self._is_connected.is_set()):
                self._is_stale.clear()  # first: what changes from now on is seen by a watch of this reading
                try:
                    self._view = self._read()
                except DiscoveryFailed:
                    self._is_stale.set()
                    if self._view is None:
                        raise
            return {name: dict(entries) for name, entries in self._view.items()}

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._is_connected.set()  # who waits for a connection learns that there will be none
        self._keeper.join(_CLOSE_S)
        _end(self._client)
        self._keeper.join(_CLOSE_S)

    def deregister_all(self) -> None:
        with self._lock:
            self._own.clear()
        self.clear(force=True)
        self._is_stale.set()

    def clean_up(self, now: Callable[[], float] = time.time) -> None:
        """Remove paths under /monolith that are older than nine weeks and in which no process is registered.

        The reference looks at the age alone, and removes the path of a job that has been running for nine weeks.
        """
        for child in self._jobs():
            path = f"{ROOT}/{child}"
            with contextlib.suppress(DiscoveryFailed, KazooException):
                stat = self._ask(self._client.exists_async, path)
                if stat and now() - stat.mtime / 1000 > STALE_S and not self._has_entries(path):
                    self._remove(path)
                    logger.info("removed a stale path path=%s", path)

    def clear(self, *, force: bool) -> None:
        """Make sure that nothing of an earlier job with this name is left.

        With `force` its path is removed, entries of live processes included; without, a path that exists is a Conflict
        that names everything under /monolith.
        """
        jobs = self._jobs()
        if self._root not in [f"{ROOT}/{job}" for job in jobs]:
            return
        if not force:
            raise Conflict(f"there are [{','.join(sorted(jobs))}] in monolith zk path")
        self._remove(self._root)
        logger.info("cleared path=%s", self._root)

    def _jobs(self) -> list[str]:
        try:
            return list(self._ask(self._client.get_children_async, ROOT))
        except NoNodeError:
            return []

    def _has_entries(self, path: str) -> bool:
        return any(
            (stat := self._ask(self._client.exists_async, f"{path}/{child}")) is not None
            and stat.ephemeralOwner
            for child in self._ask(self._client.get_children_async, path)
        )

    def _remove(self, path: str) -> None:
        """The node and everything below it; entries that appear meanwhile keep it alive."""
        with contextlib.suppress(NoNodeError, NotEmptyError):
            for child in self._ask(self._client.get_children_async, path):
                self._remove(f"{path}/{child}")
            self._ask(self._client.delete_async, path)

    # --- writing ---

    def _write(self, name: str, index: int, address: str) -> None:
        """Make the node ours and its content right; nothing is written when it is both."""
        path = self._path(name, index)
        try:
            self._write_node(path, address.encode())
        except (NoNodeError, NodeExistsError, BadVersionError) as error:
            raise DiscoveryFailed(
                f"ZooKeeper: {path} changes under our hands; is {name} {index} started twice, or its job cleared?"
            ) from error
        self._is_stale.set()

    def _write_node(self, path: str, content: bytes) -> None:
        try:
            self._ask(self._client.create_async, path, content, ephemeral=True, makepath=True)
        except NodeExistsError:
            found, stat = self._ask(self._client.get_async, path)
            if stat.ephemeralOwner != self._session():
                # Only the node that was looked at: its owner may have written it again meanwhile.
                self._ask(self._client.delete_async, path, version=stat.version)
                self._ask(self._client.create_async, path, content, ephemeral=True, makepath=True)
            elif found != content:
                self._ask(self._client.set_async, path, content)

    def _session(self) -> int:
        """The id of our session; kazoo has none to tell while it has no connection."""
        client_id = self._client.client_id
        if client_id is None or client_id[0] is None:
            raise DiscoveryFailed(f"the connection to ZooKeeper at {self._servers} was lost")
        return int(client_id[0])

    def _keep(self) -> None:
        """Write own entries again now and then, and at once when the connection is back.

        Without this thread a lost session stays lost, so no error ends it.
        """
        wait_s, has_failed = self._reregister_s, False
        while not self._stopping.is_set():
            self._wake.wait(wait_s)
            self._wake.clear()
            try:
                if self._is_connected.wait(_GIVE_UP_TIMEOUTS * self._session_timeout_s):
                    self._write_own()
                else:
                    self._start_anew()
                wait_s, has_failed = self._reregister_s, False
            except Exception as error:
                if not has_failed and not self._stopping.is_set():
                    is_expected = isinstance(error, DiscoveryFailed)
                    logger.warning(
                        "own entries are not renewed, trying again: %s",
                        error,
                        exc_info=not is_expected,
                    )
                wait_s, has_failed = min(_PROMPT_RETRY_S, self._reregister_s), True

    def _write_own(self) -> None:
        with self._lock:
            own = dict(self._own)
        for (name, index), address in own.items():
            self._write(name, index, address)

    def _connect(self) -> KazooClient:
        client = _client(self._servers, self._session_timeout_s, self._auth)
        client.add_listener(self._on_connection)
        client.start_async()
        return client

    def _start_anew(self) -> None:
        """Give up a session that has expired everywhere by now.

        A server that has lost its data is refused by an old session for ever, because it has seen newer changes.
        """
        if self._stopping.is_set():
            return
        old = self._client
        old.remove_listener(self._on_connection)
        self._client = self._connect()
        self._wake.set()
        _end(old)

    # --- reading ---

    def _read(self) -> dict[str, Entries]:
        try:
            children = self._ask(self._client.get_children_async, self._root, watch=self._on_change)
        except NoNodeError:
            self._ask(self._client.exists_async, self._root, watch=self._on_change)
            return {}
        found: dict[str, Entries] = {}
        for child in children:
            path, key = f"{self._root}/{child}", parse_entry(child)
            if key is None:
                self._ignore(path, child, "not <name>.<index>")
                continue
            with contextlib.suppress(NoNodeError):
                content, _ = self._ask(self._client.get_async, path, watch=self._on_change)
                text = content.decode(errors="replace").strip()
                if text and (address := self._readable(path, text)) is not None:
                    found.setdefault(key[0], {})[key[1]] = address
        return found

    def _on_change(self, _event: object) -> None:
        self._is_stale.set()

    def _on_connection(self, state: str) -> None:
        """Called on kazoo's thread, which must go on: only events are set here."""
        if state == KazooState.CONNECTED:
            logger.info("ZooKeeper connected servers=%s", self._servers)
            self._is_connected.set()
            self._is_stale.set()
            self._wake.set()
        else:
            self._is_connected.clear()
            self._wake.set()
            if not self._stopping.is_set():
                logger.warning(
                    "ZooKeeper %s servers=%s; the entries last seen stand",
                    state.lower(),
                    self._servers,
                )

    def _path(self, name: str, index: int) -> str:
        return f"{self._root}/{name}.{index}"

    def _ask(self, request: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """One request: its answer, or DiscoveryFailed after the time-out."""
        if not self._is_connected.wait(self._timeout_s) or self._stopping.is_set():
            raise DiscoveryFailed(f"no ZooKeeper answers at {self._servers}")
        with _translated(self._servers):
            return request(*arguments, **options).get(timeout=self._timeout_s)


def server_list(servers: str, environ: Mapping[str, str]) -> str:
    """`servers` as kazoo takes them: with ports, and IPv4 or IPv6 literals left out that this machine cannot reach.

    Host names stay. If only literals of the other family are listed, all of them stay.
    """
    hosts = [host for host in (host.strip() for host in servers.split(",")) if host]
    want_ipv6 = addresses.is_ipv6_only(environ)
    parsed = [_with_port(host) for host in hosts]
    fitting = [host for host, family in parsed if family in (None, want_ipv6)]
    return ",".join(fitting or [host for host, _ in parsed])


def _with_port(text: str) -> tuple[str, bool | None]:
    """(host:port, is it an IPv6 literal; None = a name)."""
    if addresses.is_ipv6(text.strip("[]")):
        return addresses.join(text.strip("[]"), _PORT), True
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(_PORT))
    is_literal = addresses.is_ipv6(host.strip("[]")) or host.replace(".", "").isdigit()
    return f"{host}:{port}", addresses.is_ipv6(host.strip("[]")) if is_literal else None


def _client(servers: str, session_timeout_s: float, auth: str) -> KazooClient:
    quiet = logger.getChild("kazoo")
    quiet.setLevel(
        logging.ERROR
    )  # it would warn at every try while a server is away; the listener does once
    # With credentials, only who has them may change the entries; everybody may read them.
    acl = [make_acl("auth", "", all=True), make_acl("world", "anyone", read=True)] if auth else None
    return KazooClient(
        hosts=servers,
        timeout=session_timeout_s,
        connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=2.0),
        auth_data=[("digest", auth)] if auth else None,
        default_acl=acl,
        logger=quiet,
    )


def _end(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except (
        Exception
    ) as error:  # its thread did not end in kazoo's time; it is a daemon, and has nothing of ours
        logger.warning("a ZooKeeper client did not end: %r", error)


@contextlib.contextmanager
def _translated(servers: str) -> Iterator[None]:
    try:
        yield
    except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError):
        raise
    except (KazooException, KazooTimeoutError) as error:
        raise DiscoveryFailed(f"ZooKeeper {servers}: {error!r}") from error
