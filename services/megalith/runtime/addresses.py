"""Host names and ports: what to bind, and what to tell others."""

import ipaddress
import os
import socket
from collections.abc import Mapping

WILDCARDS = ("0.0.0.0", "::")


def join(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 literal."""
    return f"[{host}]:{port}" if is_ipv6(host) else f"{host}:{port}"


def is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def local_host(environ: Mapping[str, str] = os.environ) -> str:
    """The address under which other machines reach this one: what the platform says, else what our name resolves to."""
    for variable in ("CLOUDNATIVE_INET_ADDR", "YARN_INET_ADDR"):
        if address := environ.get(variable, "").split(",")[0].strip():
            return address
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return str(socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET6)[0][4][0])


def is_loopback(address: str) -> bool:
    """Whether host:port names this machine to itself only."""
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or host.startswith("127.") or host == "::1"


def advertised_host(bound: str, advertise: str) -> str:
    """What others are told: `advertise` when given; the bound host, unless that is a wildcard."""
    if advertise:
        return advertise
    return local_host() if bound in WILDCARDS else bound
