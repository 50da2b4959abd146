"""Pulls and pushes beside the caller's own work: bounded, and pushes in their order."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakSet

from megalith.wire import forking

logger = logging.getLogger(__name__)

R = TypeVar("R")

_PULL_THREADS = 2  # one waits for servers while the other splits the next batch


class Background:
    """Threads for pulls and one for pushes, started at the first use.

    `_room` bounds the calls that were submitted and are not done: one more waits in the caller. `_lock` guards the
    pools. Pushes run one after the other in the order given, so that the updates of one client stay ordered.
    """

    def __init__(self, max_inflight: int) -> None:
        self._max_inflight = max_inflight
        self._room = threading.BoundedSemaphore(max_inflight)
        self._lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._futures: WeakSet[Future[Any]] = WeakSet()
        self._pushes: WeakSet[Future[Any]] = WeakSet()  # those of them that are
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """A forked child has none of the threads. What they were doing is the parent's, and so are the answers."""
        self._room = threading.BoundedSemaphore(self._max_inflight)
        self._lock = threading.Lock()
        self._pools = {}
        for future in list(self._futures):
            forking.give_up(future)
        self._futures = WeakSet()
        self._pushes = WeakSet()

    def pull(self, call: Callable[[], R]) -> "Future[R]":
        return self._submit("pull", _PULL_THREADS, call)

    def push(self, call: Callable[[], R]) -> "Future[R]":
        return self._submit("push", 1, call)

    def close(self, wait: bool) -> int:
        """Wait for what has begun and for all pushes, giving up other pulls; without `wait`, give all of it up.

        Returns how many pushes were given up, one that is on its way among them.
        """
        with self._lock:
            pools = dict(self._pools)
            given_up = 0 if wait else sum(not push.done() for push in self._pushes)
        for kind, pool in pools.items():
            pool.shutdown(wait=wait, cancel_futures=kind == "pull" or not wait)
        return given_up

    def _submit(self, kind: str, threads: int, call: Callable[[], R]) -> "Future[R]":
        self._room.acquire()
        try:
            with self._lock:
                if kind not in self._pools:
                    self._pools[kind] = ThreadPoolExecutor(
                        threads, thread_name_prefix=f"megalith-{kind}"
                    )
                future = self._pools[kind].submit(call)
                self._futures.add(future)
                if kind == "push":
                    self._pushes.add(future)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        if kind == "push":
            future.add_done_callback(_say_failure)
        return future


def _say_failure(future: "Future[Any]") -> None:
    """A push that failed is said even if nobody asks for its future: what it would have trained is not trained."""
    if future.cancelled():
        logger.warning("a push in the background was given up before it was sent")
    elif future.exception() is not None:
        logger.warning("a push in the background failed: %s", future.exception())
