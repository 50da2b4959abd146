"""Who of many answers at all: a parallel TCP probe."""

import logging
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from megalith.errors import InvalidRequest
from megalith.wire import addresses

logger = logging.getLogger(__name__)

_THREADS = 10


@dataclass(frozen=True, slots=True)
class Liveness:
    """The answer to a probe: each address is in `alive` or in `dead`, in the order of asking."""

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
    """Connect to every address, ten at a time, each for at most `timeout_s`.

    Returns when all have been tried. A test may pass another `connect` than that of sockets.
    """
    listed = list(asked)
    connect = connect or socket.create_connection

    def answers(address: str) -> bool:
        try:
            connection = connect(addresses.split(address), timeout_s)
        except (OSError, InvalidRequest) as error:
            logger.info("cannot connect to %s, because %s", address, error)
            return False

        if isinstance(connection, socket.socket):
            connection.close()

        return True

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="probe") as pool:
        verdicts = list(pool.map(answers, listed))

    alive: list[str] = []
    dead: list[str] = []
    for address, is_alive in zip(listed, verdicts, strict=True):
        (alive if is_alive else dead).append(address)

    return Liveness(tuple(alive), tuple(dead))
