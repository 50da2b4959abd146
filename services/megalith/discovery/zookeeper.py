"""Discovery through ZooKeeper: each process has an ephemeral node `/monolith/<job>/<name>.<index>`.

It vanishes with the session, `ttl_s` (10 s) after its process was last heard of. The variable
`ZK_AUTH` may hold user:password.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
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

from megalith.discovery.back_end import Opener, Site
from megalith.discovery.interface import AddressByIndex, Discovery, parse_entry, warn_not_renewed
from megalith.discovery.url import DiscoveryUrl
from megalith.discovery.zookeeper_client import (
    PORT,
    end_client,
    errors_translated,
    make_client,
    server_list,
)
from megalith.errors import DiscoveryFailed

logger = logging.getLogger(__name__)

ROOT = "/monolith"
# Nine weeks: what is older and empty was left behind by a job that is over
STALE_S = 9 * 7 * 24 * 3600.0

_SESSION_TIMEOUT_S = 10.0
_TRIES = 3
_CLOSE_S = 2.0  # for a request under way; with the client it ends for good
_PROMPT_RETRY_S = 5.0  # after a repair that failed
_GIVE_UP_TIMEOUTS = 3  # session time-outs without a connection before a new session is begun


class ZooKeeperDiscovery(Discovery):
    """Entries of one job. They vanish `session_timeout_s` after their process was last heard of.

    Every `reregister_s`, and whenever the connection comes back, own entries are written again if
    they are missing or changed. Reads are answered from a view that watches keep fresh; while no
    server answers, the last view stands. A node that another session left behind is replaced.
    Monolith overwrites it instead, and then it vanishes when that other session expires.

    A node is removed only as it was looked at: one that was written meanwhile has another version,
    and stays. ZooKeeper compares nothing but the version, and each node begins with version 0. So a
    node that its owner removed and made again between our look and our request is removed too; its
    owner makes it once more, at the latest after `reregister_s`. Needs kazoo.
    """

    def __init__(
        self,
        servers: str,
        job: str,
        *,
        auth: str = "",
        session_timeout_s: float = _SESSION_TIMEOUT_S,
        reregister_s: float = 1800.0,
        timeout_s: float = 10.0,
        retry_delay_s: float = 5.0,
    ) -> None:
        super().__init__()
        self._servers = servers
        self._root = f"{ROOT}/{job}"
        self._timeout_s = timeout_s
        self._retry_delay_s = retry_delay_s
        self._reregister_s = reregister_s
        self._session_timeout_s = session_timeout_s
        self._auth = auth

        self._lock = threading.Lock()  # guards `_own`
        # Held while an own entry is written again or removed, so that one that was removed is not
        # written after it.
        self._rewriting = threading.Lock()
        self._own: dict[tuple[str, int], str] = {}
        # Guards `_view` and `_is_view_old`; held while it is read anew
        self._view_lock = threading.Lock()
        self._view: dict[str, AddressByIndex] | None = None
        self._is_view_old = False  # the servers did not answer when it was last read; said once

        self._is_stale = threading.Event()
        self._is_stale.set()
        self._is_connected = threading.Event()
        self._wake = threading.Event()
        self._stopping = threading.Event()

        self._client = self._connect()
        self._keeper = threading.Thread(target=self._keep, name="zookeeper-keep", daemon=True)
        self._keeper.start()

    def _register(self, name: str, index: int, address: str) -> None:
        with self._lock:
            self._own[name, index] = address

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=tenacity.wait_exponential(multiplier=self._retry_delay_s),
            retry=tenacity.retry_if_exception_type(DiscoveryFailed),
            sleep=tenacity.sleep_using_event(self._stopping),
            reraise=True,
        )

        try:
            retrying(self._write, name, index, address)
        except DiscoveryFailed:
            logger.warning("server_type: %s , index:%d register fail", name, index)
            with self._lock:
                self._own.pop((name, index), None)

            raise

    def _deregister(self, name: str, index: int, address: str) -> None:
        with self._lock:
            if self._own.get((name, index)) == address:
                del self._own[name, index]

        with self._rewriting:
            self._delete_node(self._path(name, index), address)

        self._is_stale.set()

    def _delete_node(self, path: str, address: str) -> None:
        try:
            content, stat = self._ask(self._client.get_async, path)
            if content.decode(errors="replace") == address:
                self._ask(self._client.delete_async, path, version=stat.version)
        except NoNodeError:
            logger.info("deregistered what was not there path=%s", path)
        except BadVersionError:
            logger.info("not deregistered, it was written again meanwhile path=%s", path)

    def _query_all(self) -> dict[str, AddressByIndex]:
        with self._view_lock:
            # Without a connection an old view is better than a wait.
            is_refreshable = self._is_stale.is_set() and self._is_connected.is_set()

            if self._view is None or is_refreshable:
                self._view = self._refreshed(self._view)

            return {name: dict(entries) for name, entries in self._view.items()}

    def _refreshed(self, old: dict[str, AddressByIndex] | None) -> dict[str, AddressByIndex]:
        """What the servers hold now; the old view if they do not answer."""
        # First: what changes from now on is seen by a watch of this reading.
        self._is_stale.clear()
        try:
            view = self._read()
        except DiscoveryFailed as error:
            self._is_stale.set()
            if old is None:
                raise

            if not self._is_view_old:
                logger.warning("%s; the entries last seen stand", error)

            self._is_view_old = True
            return old

        self._is_view_old = False
        return view

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._is_connected.set()  # who waits for a connection learns that there will be none
        self._keeper.join(_CLOSE_S)
        end_client(self._client)
        self._keeper.join(_CLOSE_S)

    def deregister_all(self) -> None:
        with self._lock:
            self._own.clear()

        with self._rewriting:
            self._remove(self._root)

        self._is_stale.set()

    def clean_up(self, now: Callable[[], float] = time.time) -> None:
        """Remove paths under /monolith older than nine weeks in which no process is registered.

        Monolith looks at the age alone, and removes the path of a job that has been running for
        nine weeks.
        """
        for child in self._jobs():
            path = f"{ROOT}/{child}"
            with contextlib.suppress(DiscoveryFailed, KazooException):
                stat = self._ask(self._client.exists_async, path)
                if stat is None:
                    continue

                age_s = now() - stat.mtime / 1000
                is_old = age_s > STALE_S
                if is_old and not self._has_entries(path):
                    self._remove(path)
                    logger.info("removed a stale path path=%s", path)

    def _jobs(self) -> list[str]:
        try:
            return list(self._ask(self._client.get_children_async, ROOT))
        except NoNodeError:
            return []

    def _has_entries(self, path: str) -> bool:
        for child in self._ask(self._client.get_children_async, path):
            stat = self._ask(self._client.exists_async, f"{path}/{child}")
            if stat is not None and stat.ephemeralOwner:
                return True

        return False

    def _remove(self, path: str) -> None:
        """The node and everything below it; entries that appear meanwhile keep it alive."""
        with contextlib.suppress(NoNodeError, NotEmptyError):
            children = self._ask(self._client.get_children_async, path)
            for child in children:
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
                f"ZooKeeper: {path} changes under our hands; "
                f"is {name}-{index} started twice, or its job cleared?"
            ) from error

        self._is_stale.set()

    def _write_node(self, path: str, content: bytes) -> None:
        try:
            self._create(path, content)
            return
        except NodeExistsError:
            found, stat = self._ask(self._client.get_async, path)

        if stat.ephemeralOwner != self._session():
            # Only the node that was looked at: its owner may have written it again meanwhile.
            self._ask(self._client.delete_async, path, version=stat.version)
            self._create(path, content)
        elif found != content:
            self._ask(self._client.set_async, path, content)

    def _create(self, path: str, content: bytes) -> None:
        self._ask(self._client.create_async, path, content, ephemeral=True, makepath=True)

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
        give_up_s = _GIVE_UP_TIMEOUTS * self._session_timeout_s
        wait_s = self._reregister_s
        has_failed = False

        while not self._stopping.is_set():
            self._wake.wait(wait_s)
            self._wake.clear()
            try:
                if self._is_connected.wait(give_up_s):
                    self._write_own()
                else:
                    self._start_anew()

                wait_s = self._reregister_s
                has_failed = False
            except Exception as error:
                if not has_failed and not self._stopping.is_set():
                    warn_not_renewed(error, logger)

                wait_s = min(_PROMPT_RETRY_S, self._reregister_s)
                has_failed = True

    def _write_own(self) -> None:
        with self._lock:
            own = dict(self._own)

        for (name, index), address in own.items():
            with self._rewriting:
                if self._is_own(name, index, address):
                    self._write(name, index, address)

    def _is_own(self, name: str, index: int, address: str) -> bool:
        with self._lock:
            return self._own.get((name, index)) == address

    def _connect(self) -> KazooClient:
        client = make_client(self._servers, self._session_timeout_s, self._auth)
        client.add_listener(self._on_connection)
        client.start_async()
        return client

    def _start_anew(self) -> None:
        """Give up a session that has expired everywhere by now.

        A server that has lost its data is refused by an old session for ever, because it has seen
        newer changes.
        """
        if self._stopping.is_set():
            return

        old = self._client
        old.remove_listener(self._on_connection)
        self._client = self._connect()
        self._wake.set()
        end_client(old)

    # --- reading ---

    def _read(self) -> dict[str, AddressByIndex]:
        found: dict[str, AddressByIndex] = {}
        for child in self._children():
            path = f"{self._root}/{child}"
            entry = parse_entry(child)
            if entry is None:
                self._ignore(path, child, "not <name>.<index>")
                continue

            address = self._read_address(path)
            if address is not None:
                name, index = entry
                found.setdefault(name, {})[index] = address

        return found

    def _children(self) -> list[str]:
        """The names of the job's nodes, with a watch that tells when one comes or goes."""
        while True:
            try:
                return list(
                    self._ask(self._client.get_children_async, self._root, watch=self._on_change)
                )
            except NoNodeError:
                stat = self._ask(self._client.exists_async, self._root, watch=self._on_change)

            if stat is None:
                return []
            # The job has been entered between the two questions. The watch of the second one is of
            # the job's own node, and tells nothing of those below it: ask for them again.

    def _read_address(self, path: str) -> str | None:
        """None if the node is gone, empty, or holds no address."""
        try:
            content, _ = self._ask(self._client.get_async, path, watch=self._on_change)
        except NoNodeError:
            return None

        text = content.decode(errors="replace").strip()
        return self._readable(path, text) if text else None

    def _on_change(self, _event: object) -> None:
        self._is_stale.set()

    def _on_connection(self, state: str) -> None:
        """Called on kazoo's thread, which must go on: only events are set here."""
        if state == KazooState.CONNECTED:
            logger.info("ZooKeeper connected servers=%s", self._servers)
            self._is_connected.set()
            self._is_stale.set()
            self._wake.set()
            return

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
        is_connected = self._is_connected.wait(self._timeout_s)
        if not is_connected or self._stopping.is_set():
            raise DiscoveryFailed(f"no ZooKeeper answers at {self._servers}")

        with errors_translated(self._servers):
            pending = request(*arguments, **options)
            return pending.get(timeout=self._timeout_s)


def opener(url: DiscoveryUrl, site: Site) -> Opener:
    """`zookeeper://host:port,host:port/job?ttl_s=10`; the job may be left to --job."""
    url.take_options("ttl_s")
    listed = [server.strip() for server in url.servers.split(",")]
    if not any(listed):
        raise url.wrong("it names no server")

    for server in filter(None, listed):
        url.check_server(server, PORT)

    job = url.job(site)
    session_timeout_s = url.seconds("ttl_s", _SESSION_TIMEOUT_S)

    def connect() -> ZooKeeperDiscovery:
        return ZooKeeperDiscovery(
            server_list(url.servers, site.environ),
            job,
            auth=site.environ.get("ZK_AUTH", ""),
            session_timeout_s=session_timeout_s,
        )

    return Opener(open=connect, url=url.text, job=job)
