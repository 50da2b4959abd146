"""Host names and ports: what to bind, and what to tell others."""

import ipaddress
import os
import socket
from collections.abc import Mapping

from megalith.errors import InvalidRequest

WILDCARDS = ("0.0.0.0", "::")
_NOT_IN_NAMES = set(": \t\r\n\0/,;[]\ufffd")  # characters that no host name has


def join(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 literal."""
    shown = f"[{host}]" if is_ipv6(host) else host
    return f"{shown}:{port}"


def split(address: str) -> tuple[str, int]:
    """(host, port) of host:port, brackets of an IPv6 literal taken off.

    InvalidRequest if it is not one.
    """
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")

    if is_bracketed:
        bare = host[1:-1]
        is_host = is_ipv6(bare)
    else:
        bare = host
        wrong = set(bare) & _NOT_IN_NAMES
        is_host = bool(bare) and not wrong

    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    number = int(port) if is_number else 0
    is_port = 0 < number <= 65535
    if not (colon and is_host and is_port):
        raise InvalidRequest(f"Invalid addr: {address[:80]!r} is not host:port")

    return bare, number


def host_of(address: str) -> str:
    """The host of host:port, without brackets; works for IPv6 too."""
    return address.rpartition(":")[0].strip("[]")


def is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def is_ipv6_only(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this machine has no IPv4 address.

    The platform says so; if it is silent, what our own name resolves to tells.
    """
    if any(environ.get(variable) for variable in ("MY_HOST_IP", "MY_POD_IP", "MY_HOST_IPV6")):
        return not (environ.get("MY_HOST_IP") or environ.get("MY_POD_IP"))

    try:
        return not socket.gethostbyname(socket.gethostname())
    except OSError:
        return True


def local_ip() -> str:
    """The first address that our own name resolves to; IPv6 where there is no other."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return str(socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET6)[0][4][0])


def local_host(environ: Mapping[str, str] = os.environ) -> str:
    """The address under which other machines reach this one.

    It is what the platform says, else what our own name resolves to.
    """
    for variable in ("CLOUDNATIVE_INET_ADDR", "YARN_INET_ADDR"):
        if address := environ.get(variable, "").split(",")[0].strip():
            return address

    return local_ip()


def is_loopback(address: str) -> bool:
    """Whether host:port names this machine to itself only."""
    host = host_of(address)
    return host == "localhost" or host.startswith("127.") or host == "::1"


def advertised_host(bound: str, advertise: str) -> str:
    """What others are told: `advertise` when given; the bound host, unless that is a wildcard."""
    if advertise:
        return advertise

    return local_host() if bound in WILDCARDS else bound
