"""What a ps remembers of applied writes, so that a repeated one is answered and not applied again."""

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from megalith.wire.errors import (
    ClientIdTaken,
    LimitExceeded,
    OutcomeLost,
    Overloaded,
    SequenceExpired,
)

logger = logging.getLogger(__name__)

R = TypeVar("R")

WINDOW = 64  # writes remembered per client: more than a client has in flight
# Measured with tracemalloc, which a test does again; rounded up.
CLIENT_BYTES = 18 << 10  # of one client with a full window, without the arrays of its replies
ARRAY_BYTES = 128  # of one array in a reply, without its data
_KEPT_REPLY_BYTES = (
    1 << 20
)  # of one client's replies before the newest one, which only late repetitions ask for

DEFAULT_MAX_BYTES = 256 << 20
MIN_BYTES = 1 << 20
DEFAULT_RETENTION_S = 1200.0  # twice as long as a worker waits for one answer


@dataclass(frozen=True, slots=True)
class Prepared(Generic[R]):
    """A write that was found applicable. Only a fault of this server makes `commit` raise; its reply has that size.

    `rest` answers a repetition when the reply is not kept. Without one, the reply has to find room.
    """

    commit: Callable[[], R]
    reply_bytes: int = 0
    rest: R | None = None


class AppliedPushes(Generic[R]):
    """Replies by (client id, sequence), of clients that wrote within the last `retention_s` seconds.

    A client is never forgotten earlier: when `max_bytes` are full, clients that are new are asked to come again later.
    One whose write is being applied is never forgotten at all. Replies that have a `rest` are kept where there is room:
    no client waits for another one's to go.

    `_lock` guards the map of clients and the bytes. Each client's own lock is held while one of its writes is applied:
    a retry that overtakes its original waits for it and gets its reply.
    """

    def __init__(
        self,
        max_bytes: int = DEFAULT_MAX_BYTES,
        retention_s: float = DEFAULT_RETENTION_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._retention_s = retention_s
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, _Client[R]] = (
            OrderedDict()
        )  # the one that was idle longest is the first
        self._nbytes = 0
        self._has_forgotten = False

    @property
    def nbytes(self) -> int:
        """Memory that is taken or promised; what nobody can ask for any more is let go first."""
        with self._lock:
            self._forget_idle()
            return self._nbytes

    @property
    def num_clients(self) -> int:
        with self._lock:
            return len(self._clients)

    def once(
        self,
        client_id: str,
        sequence: int,
        prepare: Callable[[], Prepared[R]],
        incarnation: int = 0,
        *,
        is_repeated: bool = False,
        first_try_s_ago: float = math.inf,
    ) -> R:
        """The reply of the write that `prepare` makes ready, committed unless it was before.

        If `prepare` raises, nothing is remembered and the write may be tried again. If the commit raises, a part of the
        write may have been applied: OutcomeLost, now and for every repetition. `is_repeated` says that the client may
        have sent this write before, first so long ago; from a client that may have been forgotten since, that is
        OutcomeLost too.

        A client id belongs to the incarnation that used it first: another one would begin again at sequence 1, and its
        writes would be answered as repeated ones.
        """
        repeated_s = first_try_s_ago if is_repeated else 0.0
        with self._in_use(client_id, incarnation, repeated_s) as client, client.lock:
            if client.incarnation != incarnation:
                raise ClientIdTaken(
                    f"another client pushes as {client_id!r}; use a client id of your own"
                )
            if sequence in client.outcomes:
                return client.outcomes[sequence].repeated(client_id, sequence)
            if sequence <= client.newest - WINDOW:
                raise SequenceExpired(
                    f"push {sequence} of client {client_id} is older than the last {WINDOW} up to {client.newest}; "
                    "whether it was applied is not known: use a new client id"
                )
            prepared = prepare()
            kept_bytes = self._make_room(client, prepared)
            try:
                reply = prepared.commit()
            except BaseException as error:
                why = f"it failed half-way on this server ({type(error).__name__}: {error}), whose log has the traceback"
                logger.exception(
                    "a write was applied in part client=%s sequence=%d", client_id, sequence
                )
                self._remember(client, sequence, _Outcome(lost=why), -kept_bytes)
                raise _lost(client_id, sequence, why) from error
            is_kept = kept_bytes == prepared.reply_bytes
            kept = reply if is_kept else prepared.rest
            self._remember(client, sequence, _Outcome(kept, kept_bytes, rest=prepared.rest))
            return reply

    @contextmanager
    def _in_use(
        self, client_id: str, incarnation: int, repeated_s: float
    ) -> "Iterator[_Client[R]]":
        """Inside, the client is remembered; afterwards only if there is anything to remember of it."""
        with self._lock:
            client = self._clients.get(client_id)
            if client is None:
                client = self._welcome(client_id, incarnation, repeated_s)
            client.users += 1
            self._touch(client_id, client)
        try:
            yield client
        finally:
            with self._lock:
                client.users -= 1
                self._touch(client_id, client)
                if not client.users and not client.outcomes:
                    self._forget(client_id)

    def _welcome(self, client_id: str, incarnation: int, repeated_s: float) -> "_Client[R]":
        self._forget_idle()
        # Who first sent this later than that was not forgotten since: had it arrived, its client would be known. The
        # other half of the time is for the way here.
        if self._has_forgotten and repeated_s > self._retention_s / 2:
            raise _lost(
                client_id,
                0,
                f"this server forgets a client that has been idle for {self._retention_s:g} s",
            )
        size = CLIENT_BYTES + len(client_id)
        self._strip_others(size)
        if self._nbytes + size > self._max_bytes:
            raise Overloaded(
                f"this server remembers the pushes of {len(self._clients)} clients and has no room for another: "
                f"{self._nbytes} of {self._max_bytes} bytes are taken (--push-memory-bytes). Nothing was applied; "
                f"clients idle for {self._retention_s:g} s make room"
            )
        self._nbytes += size
        client = self._clients[client_id] = _Client[R](incarnation, size)
        return client

    def _touch(self, client_id: str, client: "_Client[R]") -> None:
        client.used_at = self._clock()
        self._clients.move_to_end(client_id)

    def _forget_idle(self) -> None:
        now = self._clock()
        idle = []
        for client_id, client in self._clients.items():
            if now - client.used_at <= self._retention_s:
                break  # those after it were used later
            if not client.users:
                idle.append(client_id)
        for client_id in idle:
            self._has_forgotten = True
            self._forget(client_id)

    def _forget(self, client_id: str) -> None:
        self._nbytes -= self._clients.pop(client_id).nbytes

    def _make_room(self, client: "_Client[R]", prepared: Prepared[R]) -> int:
        """Promise room for a reply, and return the bytes of it that are kept: all or none.

        The client's own older replies make way. Other clients' do only for a reply that has no rest, and only those
        that have one.
        """
        wanted = prepared.reply_bytes
        with self._lock:
            missing = self._nbytes + wanted - self._max_bytes
            if missing > 0:
                self._nbytes -= client.strip(missing)
                if prepared.rest is None:
                    self._strip_others(wanted)
            if not wanted or self._nbytes + wanted <= self._max_bytes:
                self._nbytes += wanted
                client.nbytes += wanted
                return wanted
            if prepared.rest is not None:
                return 0
            if client.own_bytes + wanted > self._max_bytes:
                raise LimitExceeded(
                    f"a reply of {wanted} bytes is more than this server can ever remember: --push-memory-bytes="
                    f"{self._max_bytes}. Nothing was applied; write less at once, or raise that setting"
                )
            raise Overloaded(
                f"this server has no room to remember a reply of {wanted} bytes: {self._nbytes} of "
                f"{self._max_bytes} bytes are taken (--push-memory-bytes). Nothing was applied"
            )

    def _strip_others(self, wanted: int) -> None:
        """Let go of replies that have a rest, of clients that were idle longest first, until so many bytes are free."""
        for client in self._clients.values():
            missing = self._nbytes + wanted - self._max_bytes
            if missing <= 0:
                return
            if client.nbytes > client.own_bytes:
                self._nbytes -= client.strip(missing, with_rest_only=True)

    def _remember(
        self, client: "_Client[R]", sequence: int, outcome: "_Outcome[R]", correction: int = 0
    ) -> None:
        with self._lock:
            client.nbytes += correction
            self._nbytes += correction
            self._nbytes -= client.remember(sequence, outcome)


class _Outcome(Generic[R]):
    """What came of one write: its reply, that it was applied though the reply is not kept, or that nobody knows."""

    __slots__ = ("is_stripped", "lost", "nbytes", "reply", "rest")

    def __init__(
        self, reply: R | None = None, nbytes: int = 0, lost: str = "", rest: R | None = None
    ) -> None:
        self.reply = reply
        self.nbytes = nbytes
        self.lost = lost
        self.rest = rest
        self.is_stripped = False  # and there is no rest

    def repeated(self, client_id: str, sequence: int) -> R:
        if self.lost:
            raise _lost(client_id, sequence, self.lost)
        if self.is_stripped:
            raise SequenceExpired(
                f"push {sequence} of client {client_id} was applied; its reply is not kept any more"
            )
        return self.reply  # type: ignore[return-value]  # set, since it is neither lost nor stripped

    def strip(self) -> int:
        """Let go of the reply, not of what is known; returns the bytes of it."""
        freed = self.nbytes
        if freed:
            self.is_stripped = self.rest is None
            self.reply = self.rest  # at once: another thread may be answering a repetition
            self.nbytes = 0
        return freed


class _Client(Generic[R]):
    def __init__(self, incarnation: int, nbytes: int) -> None:
        self.incarnation = incarnation
        self.own_bytes = nbytes
        self.nbytes = nbytes  # with its replies
        self.lock = threading.Lock()
        self.outcomes: dict[int, _Outcome[R]] = {}
        self.newest = 0
        self.users = 0  # threads that have a write of this client in hand
        self.used_at = 0.0

    def remember(self, sequence: int, outcome: _Outcome[R]) -> int:
        """Returns the bytes that were freed."""
        before = self.nbytes
        self.outcomes[sequence] = outcome
        self.newest = max(self.newest, sequence)
        if len(self.outcomes) > WINDOW:
            self.nbytes -= self.outcomes.pop(min(self.outcomes)).nbytes
        kept = self.nbytes - self.own_bytes - self.outcomes[self.newest].nbytes
        freed = before - self.nbytes
        if kept > _KEPT_REPLY_BYTES:
            freed += self.strip(kept - _KEPT_REPLY_BYTES)
        return freed

    def strip(self, wanted: int, *, with_rest_only: bool = False) -> int:
        """Let go of replies, the oldest first, until `wanted` bytes are free; returns how many are."""
        freed = 0
        for number in sorted(self.outcomes):
            if freed >= wanted:
                break
            outcome = self.outcomes[number]
            if outcome.rest is not None or not with_rest_only:
                freed += outcome.strip()
        self.nbytes -= freed
        return freed


def _lost(client_id: str, sequence: int, why: str) -> OutcomeLost:
    which = (
        f"push {sequence} of client {client_id}"
        if sequence
        else f"a repeated push of client {client_id}"
    )
    return OutcomeLost(
        f"whether {which} was applied will never be known: {why}; it is not applied again"
    )
