"""Ports for processes that must be told where to listen before they run."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from megalith.errors import LimitExceeded

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_RANGE = (32768, 60999)  # Linux; elsewhere it begins higher
# below are the ports of well-known services
_LOWEST = 10_000
_HIGHEST = 65_535


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports, free at this moment, that the system itself gives to nobody.

    The system has a range of ports for whoever binds port 0. It may give one of those away in the
    seconds before the process that we mean it for has started. So these ports lie outside of that
    range; only another call of this function may choose the same.
    """
    candidates = _never_given_out()
    in_random_order = random.SystemRandom().sample(candidates, len(candidates))
    found: list[int] = []
    with ExitStack() as stack:
        for port in in_random_order:
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((host, port))
            except OSError:
                continue

            found.append(port)
            if len(found) == count:
                return found

    raise LimitExceeded(f"{count} free ports on {host} are needed, {len(found)} were found")


def _never_given_out() -> list[int]:
    """The ports that the system gives to nobody; all of them where it gives out any."""
    low, high = _given_range()
    ports = range(_LOWEST, _HIGHEST + 1)
    outside = []
    for port in ports:
        if not low <= port <= high:
            outside.append(port)

    return outside or list(ports)


def _given_range() -> tuple[int, int]:
    """The ports that the system itself gives out, both ends included."""
    try:
        low, high = map(int, _RANGE_FILE.read_text().split())
    except (OSError, ValueError):
        return _USUAL_RANGE

    return low, high
