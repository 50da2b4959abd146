"""A connection to ZooKeeper: which servers this machine can reach, and a client of them."""

import contextlib
import logging
from collections.abc import Iterator, Mapping

from kazoo.client import KazooClient
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

from megalith.errors import DiscoveryFailed
from megalith.wire import addresses

logger = logging.getLogger(__name__)

PORT = 2181


def server_list(servers: str, environ: Mapping[str, str]) -> str:
    """`servers` as kazoo takes them: with ports, and without those that this machine cannot reach.

    Left out are literal addresses of the family, IPv4 or IPv6, that this machine does not have.
    Host names stay. If only literals of the other family are listed, all of them stay.
    """
    is_ipv6_wanted = addresses.is_ipv6_only(environ)
    listed: list[str] = []
    fitting: list[str] = []

    for text in servers.split(","):
        if not text.strip():
            continue

        host, port = _split(text.strip())
        is_ipv6 = addresses.is_ipv6(host)
        server = f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}"
        listed.append(server)

        if not _is_literal(host) or is_ipv6 == is_ipv6_wanted:
            fitting.append(server)

    return ",".join(fitting or listed)


def _split(server: str) -> tuple[str, str]:
    """(host without brackets, port), the usual port if none is named."""
    bare = server.strip("[]")
    if addresses.is_ipv6(bare):
        return bare, str(PORT)

    host, colon, port = server.rpartition(":")
    if not colon:
        return server, str(PORT)

    return host.strip("[]"), port


def _is_literal(host: str) -> bool:
    return addresses.is_ipv6(host) or host.replace(".", "").isdigit()


def make_client(servers: str, session_timeout_s: float, auth: str) -> KazooClient:
    quiet = logger.getChild("kazoo")
    # It would warn at every try while a server is away; the listener does once.
    quiet.setLevel(logging.ERROR)
    acl = None
    auth_data = None

    if auth:
        # Only who has the credentials may change the entries; everybody may read them.
        acl = [make_acl("auth", "", all=True), make_acl("world", "anyone", read=True)]
        auth_data = [("digest", auth)]

    return KazooClient(
        hosts=servers,
        timeout=session_timeout_s,
        connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=2.0),
        auth_data=auth_data,
        default_acl=acl,
        logger=quiet,
    )


def end_client(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except Exception as error:
        # Its thread did not end in kazoo's time; it is a daemon, and has nothing of ours.
        logger.warning("a ZooKeeper client did not end: %r", error)


@contextlib.contextmanager
def errors_translated(servers: str) -> Iterator[None]:
    try:
        yield
    except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError):
        raise
    except (KazooException, KazooTimeoutError) as error:
        raise DiscoveryFailed(f"ZooKeeper {servers}: {error!r}") from error
