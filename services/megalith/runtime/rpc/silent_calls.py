"""Calls whose peer has still to send its message, and when they are given up.

gRPC gives a call its thread when its headers have come, and waits there for the message. A peer
that sends headers and nothing else would hold the thread for as long as it likes.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from megalith.errors import InvalidRequest

logger = logging.getLogger(__name__)

_PATIENCE_S = 1.0  # with a message that is on its way; only when others wait for a thread
_LOOKS_PER_LIMIT = 4

T = TypeVar("T")


class CallPool(futures.ThreadPoolExecutor):
    """Threads that answer calls, and how many calls wait for one. `_counting` guards the count."""

    def __init__(self, max_workers: int, name: str) -> None:
        super().__init__(max_workers, thread_name_prefix=name)
        self._size = max_workers
        self._counting = threading.Lock()
        self._count = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> futures.Future[T]:
        with self._counting:
            self._count += 1

        try:
            future = super().submit(fn, *args, **kwargs)
        except BaseException:
            self._leave(None)
            raise

        future.add_done_callback(self._leave)
        return future

    @property
    def size(self) -> int:
        """Calls that it answers at once."""
        return self._size

    @property
    def num_waiting(self) -> int:
        """Calls without a thread."""
        with self._counting:
            return max(0, self._count - self._size)

    def _leave(self, _: object) -> None:
        with self._counting:
            self._count -= 1


@dataclass(slots=True, eq=False)
class _Silence:
    """One call that waits for its peer."""

    context: grpc.ServicerContext
    began: float
    limit_s: float


class SilentCalls:
    """Waits for messages of peers, and gives up calls that keep their thread too long.

    `_lock` guards `_silences`. A call is given up when its own limit is over. While other calls
    wait for a thread of `pool`, the oldest ones are given up after `patience_s` already, until half
    of the threads are left to those that wait for their message: a large message that takes long
    comes through under honest overload, because most threads are busy with other things then. The
    peers of calls that are given up see a cancelled call, which clients of this project try again.
    """

    def __init__(
        self,
        pool: CallPool,
        shortest_limit_s: float,
        patience_s: float = _PATIENCE_S,
        look_s: float | None = None,
    ) -> None:
        self._pool = pool
        self._patience_s = patience_s
        shortest_s = min(patience_s, shortest_limit_s)
        self._look_s = look_s or shortest_s / _LOOKS_PER_LIMIT

        self._lock = threading.Lock()
        self._silences: dict[_Silence, None] = {}  # the oldest first

        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="silent-calls", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def next_message(
        self, requests: Iterator[T], context: grpc.ServicerContext, limit_s: float
    ) -> T:
        """The peer's next message.

        Raises what gRPC raises for a call that has ended, also because it is given up.
        """
        silence = _Silence(context, time.monotonic(), limit_s)
        with self._lock:
            self._silences[silence] = None

        try:
            return next(requests)
        finally:
            with self._lock:
                del self._silences[silence]

    def only_message(
        self, requests: Iterator[T], context: grpc.ServicerContext, limit_s: float
    ) -> T:
        """The message of a unary call."""
        try:
            return self.next_message(requests, context, limit_s)
        except StopIteration:
            raise InvalidRequest("the call ended without its message") from None

    def _run(self) -> None:
        while not self._stopping.wait(self._look_s):
            now = time.monotonic()
            for silence in self._overdue(now):
                context = silence.context
                silent_s = now - silence.began
                logger.info(
                    "a call of %s is given up: no message in %.1f s", context.peer(), silent_s
                )
                context.cancel()

    def _overdue(self, now: float) -> list[_Silence]:
        overdue: list[_Silence] = []
        with self._lock:
            too_many = len(self._silences) - self._pool.size // 2
            wanted = min(self._pool.num_waiting, too_many)

            for silence in self._silences:
                silent_s = now - silence.began
                is_in_the_way = wanted > len(overdue) and silent_s > self._patience_s

                if silent_s > silence.limit_s or is_in_the_way:
                    overdue.append(silence)

        return overdue
