"""Ports for processes that must be told where to listen before they run."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from megalith.wire.errors import LimitExceeded

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_RANGE = (32768, 60999)  # Linux; elsewhere it begins higher
_LOWEST, _HIGHEST = 10_000, 65_535  # below are the ports of well-known services


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports free at this moment, all different, that the system gives to nobody who asks for any port.

    A port of its own range it may give away, to anyone who binds port 0, in the seconds before the process that the
    port is meant for has started. These it gives to nobody; only another call of this function may choose the same.
    """
    low, high = _given_range()
    candidates = [*range(_LOWEST, low), *range(high + 1, _HIGHEST + 1)] or list(
        range(_LOWEST, _HIGHEST + 1)
    )
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.SystemRandom().sample(candidates, len(candidates)):
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((host, port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise LimitExceeded(f"{count} free ports on {host} are needed, {len(found)} were found")


def _given_range() -> tuple[int, int]:
    """The ports that the system itself gives out, both ends included."""
    try:
        low, high = map(int, _RANGE_FILE.read_text().split())
    except (OSError, ValueError):
        return _USUAL_RANGE
    return low, high
