"""Who of many answers at all: a parallel TCP probe."""

import logging
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from megalith.runtime import addresses
from megalith.wire.errors import InvalidRequest

logger = logging.getLogger(__name__)

_THREADS = 10


@dataclass(frozen=True, slots=True)
class Liveness:
    """The answer to a probe: `alive` and `dead` partition the addresses asked about, in their order."""

    alive: tuple[str, ...]
    dead: tuple[str, ...]

    @property
    def are_all_alive(self) -> bool:
        return not self.dead


def probe(
    asked: Iterable[str],
    timeout_s: float = 1.0,
    connect: Callable[[tuple[str, int], float], object] | None = None,
) -> Liveness:
    """Connect to every address, ten at a time, each for at most `timeout_s`; returns when all have been tried.

    `connect` is socket.create_connection unless a test passes another.
    """
    listed = list(asked)

    def answers(address: str) -> bool:
        try:
            connection = (connect or socket.create_connection)(addresses.split(address), timeout_s)
        except (OSError, InvalidRequest) as error:
            logger.info("cannot connect to %s, because %s", address, error)
            return False
        if isinstance(connection, socket.socket):
            connection.close()
        return True

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="probe") as pool:
        is_alive = list(pool.map(answers, listed))
    verdicts = list(zip(listed, is_alive, strict=True))
    return Liveness(
        tuple(a for a, alive in verdicts if alive), tuple(a for a, alive in verdicts if not alive)
    )
