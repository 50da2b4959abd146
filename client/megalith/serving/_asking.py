"""Which replica is asked, and what happens when it does not answer."""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from megalith.errors import (
    DeadlinePassed,
    InvalidRequest,
    MegalithError,
    Overloaded,
    PeerUnreachable,
    ShardNotOwned,
    Unavailable,
)
from megalith.serving._replica_pool import KnownReplica, ReplicaLink, ReplicaPool
from megalith.wire.status import translated

Answer = TypeVar("Answer")
# Asks one replica, which has so many seconds.
Ask = Callable[[ReplicaLink, float], Answer]
# Asks replicas, each once, until a moment on the monotonic clock; NobodyAnswered if all failed.
Attempt = Callable[[float], Answer]

# Another replica may answer. One that has started again with another share says ShardNotOwned.
_PASSING = (Unavailable, DeadlinePassed, Overloaded, ShardNotOwned)
_PAUSE_S = 0.05  # after all replicas have failed
_HEDGED_CALLS = 32  # at once, each on a thread
# Of them, unanswered by one replica: then others are asked first. Calls that hang would otherwise
# take all threads, and nobody would be asked.
_MOST_WAITING = 8


class Asking:
    """Asks a replica, and another one if it fails, until `timeout_s`. Thread-safe.

    With `hedge_after_s` above 0, a further replica is asked as well when one has not answered for
    so long, and the first answer counts. What is asked must be idempotent. `_lock` guards how many
    such calls each replica has not answered yet.
    """

    def __init__(self, replicas: ReplicaPool, timeout_s: float, hedge_after_s: float) -> None:
        if not 0 <= hedge_after_s < float("inf"):
            raise InvalidRequest(f"hedge_after_s={hedge_after_s}: must be 0, for never, or above")

        self._replicas = replicas
        self._timeout_s = timeout_s
        self._hedge_after_s = hedge_after_s
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()  # hedged calls under way, by address
        self._threads: ThreadPoolExecutor | None = None
        if hedge_after_s:
            self._threads = ThreadPoolExecutor(_HEDGED_CALLS, "hedged call")

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def ask(self, buckets: NDArray[np.bool_], ask: Ask[Answer]) -> Answer:
        """The answer of a replica that holds the buckets."""
        return self.first_answer(lambda: [partial(self.ask_once, buckets, ask)])

    def first_answer(self, attempts: Callable[[], Sequence[Attempt[Answer]]]) -> Answer:
        """What the first attempt gives that is answered.

        They are made one after the other, and again, by what `attempts` says then. Each leaves time
        for those after it.
        """
        deadline = time.monotonic() + self._timeout_s
        failures = _Failures()
        while True:
            try:
                return _first_of(attempts(), deadline, failures)
            except NobodyAnswered as nobody:
                failures.add(nobody.last)
            except PeerUnreachable as error:  # nobody can say what to attempt: one may be starting
                failures.add(error)

            if deadline - time.monotonic() <= _PAUSE_S:
                raise failures.last or self._too_late()

            time.sleep(_PAUSE_S)

    def ask_once(self, buckets: NDArray[np.bool_], ask: Ask[Answer], deadline: float) -> Answer:
        """The answer of a replica that holds the buckets; NobodyAnswered if each has failed."""
        try:
            holding = self._replicas.holding(buckets)
        except PeerUnreachable as error:  # one may still be starting
            raise NobodyAnswered(error) from error

        if self._threads is None:
            return self._in_turn(holding, ask, deadline)

        return self._hedged(self._threads, holding, ask, deadline)

    def _too_late(self) -> DeadlinePassed:
        return DeadlinePassed(f"no replica answered within {self._timeout_s} s")

    def _in_turn(
        self,
        holding: Sequence[KnownReplica],
        ask: Ask[Answer],
        deadline: float,
    ) -> Answer:
        """One after the other."""
        failures = _Failures()
        for position, replica in enumerate(holding):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break

            # One that hangs leaves time for the others
            share_s = left_s / (len(holding) - position)
            try:
                return self._ask_one(replica, ask, share_s)
            except _PASSING as error:
                failures.add(error)

        raise NobodyAnswered(failures.last or self._too_late())

    def _hedged(
        self,
        threads: ThreadPoolExecutor,
        holding: Sequence[KnownReplica],
        ask: Ask[Answer],
        deadline: float,
    ) -> Answer:
        """Each after `hedge_after_s` without an answer of those before it, or when they failed."""
        failures = _Failures()
        under_way: set[Future[Answer]] = set()
        waiting = sorted(holding, key=self._is_busy)
        while waiting or under_way:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break

            if waiting:
                replica = waiting.pop(0)
                under_way.add(self._submitted(threads, replica, ask, left_s))

            patience_s = min(left_s, self._hedge_after_s) if waiting else left_s
            done, under_way = wait(under_way, patience_s, FIRST_COMPLETED)
            for answered in done:
                try:
                    return answered.result()
                except _PASSING as error:
                    failures.add(error)

        raise NobodyAnswered(failures.last or self._too_late())

    def _is_busy(self, replica: KnownReplica) -> bool:
        with self._lock:
            return self._waiting[replica.address] >= _MOST_WAITING

    def _submitted(
        self,
        threads: ThreadPoolExecutor,
        replica: KnownReplica,
        ask: Ask[Answer],
        timeout_s: float,
    ) -> Future[Answer]:
        def answered(_: Future[Answer]) -> None:
            with self._lock:
                self._waiting[replica.address] -= 1

        with self._lock:
            self._waiting[replica.address] += 1

        call = threads.submit(self._ask_one, replica, ask, timeout_s)
        call.add_done_callback(answered)
        return call

    def _ask_one(self, replica: KnownReplica, ask: Ask[Answer], timeout_s: float) -> Answer:
        try:
            with translated(f"replica {replica.address}"):
                return ask(self._replicas.link(replica), timeout_s)
        except _PASSING:
            self._replicas.failed(replica)
            raise


class NobodyAnswered(Exception):
    """All replicas of an attempt have failed; `last` is why. Stays within the SDK."""

    def __init__(self, last: MegalithError) -> None:
        super().__init__(str(last))
        self.last = last


class _Failures:
    """The last error that says something."""

    def __init__(self) -> None:
        self.last: MegalithError | None = None

    def add(self, error: MegalithError) -> None:
        # The last try may have had no time left: what one said before says more
        if self.last is None or not isinstance(error, DeadlinePassed):
            self.last = error


def _first_of(attempts: Sequence[Attempt[Answer]], deadline: float, failures: _Failures) -> Answer:
    """NobodyAnswered, of the last one, if all have failed."""
    *others, last = attempts
    for position, attempt in enumerate(others):
        now_s = time.monotonic()
        share_s = (deadline - now_s) / (len(attempts) - position)
        try:
            return attempt(now_s + share_s)
        except NobodyAnswered as nobody:
            failures.add(nobody.last)

    return last(deadline)
