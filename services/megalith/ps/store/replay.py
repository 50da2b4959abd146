"""Recognizes writes that were applied before: a repeated one is answered and not applied again."""

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from megalith.errors import ClientIdTaken, LimitExceeded, Overloaded, SequenceExpired
from megalith.ps.store.remembered_client import (
    CLIENT_BYTES,
    WINDOW,
    RememberedClient,
    WriteOutcome,
    lost_outcome,
)

logger = logging.getLogger(__name__)

R = TypeVar("R")

DEFAULT_MAX_BYTES = 256 << 20
MIN_BYTES = 1 << 20
DEFAULT_RETENTION_S = 1200.0  # twice as long as a worker waits for one answer
# The share of the memory that replies without a rest may take. They stay until their client is
# forgotten, so the other quarter is for clients that are new.
_LASTING_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Prepared(Generic[R]):
    """A write that was found applicable. Only a fault of this server makes `commit` raise.

    Its reply takes `reply_bytes`. `rest` answers a repetition when the reply is not kept. Without a
    rest the reply has to find room.
    """

    commit: Callable[[], R]
    reply_bytes: int = 0
    rest: R | None = None


class AppliedPushes(Generic[R]):
    """Replies by (client id, sequence) of clients that wrote within `retention_s` seconds.

    A client is never forgotten earlier: when `max_bytes` are full, clients that are new are asked
    to come again later. One whose write is being applied is never forgotten at all. Replies that
    have a `rest` are kept where there is room: no client waits for another one's to go. Replies
    that have none are kept, and take at most three quarters of the memory.

    `_lock` guards the clients and the counts of bytes. Each client's own lock is held while one of
    its writes is applied: a retry that overtakes its original waits for it and gets its reply.
    """

    def __init__(
        self,
        max_bytes: int = DEFAULT_MAX_BYTES,
        retention_s: float = DEFAULT_RETENTION_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_lasting_bytes = int(max_bytes * _LASTING_SHARE)
        self._retention_s = retention_s
        self._clock = clock
        self._lock = threading.Lock()
        # The one that was idle longest is the first
        self._clients: OrderedDict[str, RememberedClient[R]] = OrderedDict()
        self._nbytes = 0
        self._lasting_bytes = 0
        self._has_forgotten = False
        self._knows_predecessor = False

    @property
    def has_forgotten(self) -> bool:
        """Whether it once knew clients that it does not know any more."""
        with self._lock:
            return self._has_forgotten

    @property
    def nbytes(self) -> int:
        """Memory that is taken or promised; what nobody can ask for any more is let go first."""
        with self._lock:
            self._forget_idle()
            return self._nbytes

    def outcomes(self) -> dict[tuple[str, int], dict[int, WriteOutcome[R]]]:
        """What is remembered now: by client id and incarnation, the outcomes by sequence."""
        with self._lock:
            self._forget_idle()
            found = {}
            for client_id, client in self._clients.items():
                found[client_id, client.incarnation] = dict(client.outcomes)

            return found

    def restore(
        self, client_id: str, incarnation: int, outcomes: dict[int, WriteOutcome[R]]
    ) -> None:
        """Remember a client of a server whose state this one has taken over.

        It is remembered though the memory may be full: new clients then come later.
        """
        with self._lock:
            client = RememberedClient[R](incarnation, CLIENT_BYTES + len(client_id))
            self._clients[client_id] = client
            self._nbytes += client.nbytes

            for sequence, outcome in sorted(outcomes.items()):
                client.remember(sequence, outcome)

            self._touch(client_id, client)

    def take_over(self, has_forgotten: bool) -> None:
        """All that a predecessor remembered is restored, and its rows are those of that moment."""
        with self._lock:
            self._knows_predecessor = True
            self._has_forgotten = self._has_forgotten or has_forgotten

    def once(
        self,
        client_id: str,
        sequence: int,
        prepare: Callable[[], Prepared[R]],
        incarnation: int = 0,
        *,
        is_repeated: bool = False,
        first_try_s_ago: float = math.inf,
        reached_predecessor: bool = False,
    ) -> R:
        """The reply of the write that `prepare` makes ready, committed unless it was before.

        If `prepare` raises, nothing is remembered and the write may be tried again. If the commit
        raises, a part of the write may have been applied: OutcomeLost, now and for every
        repetition. `is_repeated` says that the client may have sent this write before, first so
        long ago; from a client that may have been forgotten since, that is OutcomeLost too.

        A write that `reached_predecessor` is OutcomeLost unless this server has taken over what the
        process before it remembered.

        A client id belongs to the incarnation that used it first: another one would begin again at
        sequence 1, and its writes would be answered as repeated ones.
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
                    f"push {sequence} of client {client_id} is older than the last {WINDOW} up to "
                    f"{client.newest}; whether it was applied is not known: use a new client id"
                )

            if reached_predecessor and not self._knows_predecessor:
                why = (
                    "this server has replaced the one that it was sent to, and what it was "
                    "restored from does not say which pushes are in it"
                )
                raise lost_outcome(client_id, sequence, why)

            return self._apply(client, client_id, sequence, prepare())

    def _apply(
        self, client: RememberedClient[R], client_id: str, sequence: int, prepared: Prepared[R]
    ) -> R:
        kept_bytes = self._make_room(client, prepared)
        try:
            reply = prepared.commit()
        except BaseException as error:
            logger.exception(
                "a write was applied in part client=%s sequence=%d", client_id, sequence
            )
            why = (
                f"it failed half-way on this server ({type(error).__name__}: {error}), "
                "whose log has the traceback"
            )

            with self._lock, self._counting(client):
                client.promise(-kept_bytes, is_lasting=prepared.rest is None)
                client.remember(sequence, WriteOutcome(lost=why))

            raise lost_outcome(client_id, sequence, why) from error

        is_kept = kept_bytes == prepared.reply_bytes
        kept = reply if is_kept else prepared.rest
        with self._lock, self._counting(client):
            client.remember(sequence, WriteOutcome(kept, kept_bytes, rest=prepared.rest))

        return reply

    @contextmanager
    def _in_use(
        self, client_id: str, incarnation: int, repeated_s: float
    ) -> Iterator[RememberedClient[R]]:
        """Inside, the client is remembered.

        Afterwards only if there is anything to remember of it.
        """
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

    def _welcome(self, client_id: str, incarnation: int, repeated_s: float) -> RememberedClient[R]:
        self._forget_idle()
        # Who first sent this later than that was not forgotten since: had it arrived, its client
        # would be known. The other half of the time is for the way here.
        if self._has_forgotten and repeated_s > self._retention_s / 2:
            why = f"this server forgets a client that has been idle for {self._retention_s:g} s"
            raise lost_outcome(client_id, 0, why)

        size = CLIENT_BYTES + len(client_id)
        self._strip_others(size)

        if self._nbytes + size > self._max_bytes:
            raise Overloaded(
                f"this server remembers the pushes of {len(self._clients)} clients and has no room "
                f"for another: {self._nbytes} of {self._max_bytes} bytes are taken "
                "(--push-memory-bytes). Nothing was applied; "
                f"clients idle for {self._retention_s:g} s make room"
            )

        client = RememberedClient[R](incarnation, size)
        self._clients[client_id] = client
        self._nbytes += size
        return client

    def _touch(self, client_id: str, client: RememberedClient[R]) -> None:
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
        client = self._clients.pop(client_id)
        self._nbytes -= client.nbytes
        self._lasting_bytes -= client.lasting_bytes

    @contextmanager
    def _counting(self, client: RememberedClient[R]) -> Iterator[None]:
        """Inside, the client's bytes may change: the sums follow. `_lock` is held."""
        bytes_before = client.nbytes
        lasting_before = client.lasting_bytes
        try:
            yield
        finally:
            self._nbytes += client.nbytes - bytes_before
            self._lasting_bytes += client.lasting_bytes - lasting_before

    def _make_room(self, client: RememberedClient[R], prepared: Prepared[R]) -> int:
        """Promise room for a reply, and return the bytes of it that are kept: all or none.

        The client's own older replies make way. Other clients' do only for a reply that has no
        rest, and only those that have one.
        """
        wanted = prepared.reply_bytes
        is_lasting = prepared.rest is None
        with self._lock:
            missing = self._missing(wanted, is_lasting)
            if missing > 0:
                with self._counting(client):
                    client.strip(missing)

                if is_lasting:
                    self._strip_others(wanted)

            if not wanted or self._missing(wanted, is_lasting) <= 0:
                with self._counting(client):
                    client.promise(wanted, is_lasting=is_lasting)
                return wanted

            if not is_lasting:
                return 0

            raise self._refusal(client, wanted)

    def _missing(self, wanted: int, is_lasting: bool) -> int:
        """Bytes that must be let go before a reply has room."""
        missing = self._nbytes + wanted - self._max_bytes
        if is_lasting:
            return max(missing, self._lasting_bytes + wanted - self._max_lasting_bytes)

        return missing

    def _refusal(self, client: RememberedClient[R], wanted: int) -> LimitExceeded:
        """Of a reply that has to be remembered and finds no room."""
        if wanted > self._max_lasting_bytes or client.own_bytes + wanted > self._max_bytes:
            return LimitExceeded(
                f"a reply of {wanted} bytes is more than this server can ever remember, "
                f"{self._max_lasting_bytes} bytes of --push-memory-bytes={self._max_bytes}. "
                "Nothing was applied; write less at once, or raise that setting"
            )

        return Overloaded(
            f"this server has no room to remember a reply of {wanted} bytes: {self._nbytes} of "
            f"{self._max_bytes} bytes are taken (--push-memory-bytes). Nothing was applied"
        )

    def _strip_others(self, wanted: int) -> None:
        """Let go of replies that have a rest until so many bytes are free.

        Those of clients that were idle longest go first.
        """
        for client in self._clients.values():
            missing = self._nbytes + wanted - self._max_bytes
            if missing <= 0:
                return

            if client.reply_bytes > client.lasting_bytes:
                with self._counting(client):
                    client.strip(missing, with_rest_only=True)
