"""Which replicas there are, and which of them is asked next."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.errors import InvalidRequest, MegalithError, PeerUnreachable
from megalith.protos import prediction_pb2_grpc, replica_pb2_grpc
from megalith.serving._lookups import LookupLink
from megalith.wire import channel
from megalith.wire.routing import share_of_buckets

logger = logging.getLogger(__name__)

_ASK_EVERY_S = 2.0  # where the replicas are
_AVOID_S = 5.0  # one that failed is asked last for so long
_CLOSE_S = 60.0  # the channel of one that is gone is closed after so long: calls have ended then


@dataclass(frozen=True, slots=True)
class KnownReplica:
    """A replica: its address, and the share of all ids that it holds (0 of 0 = all)."""

    address: str
    share_index: int = 0
    share_count: int = 0

    def holds(self, buckets: NDArray[np.bool_]) -> bool:
        """Whether it holds all of these."""
        if not self.share_count:
            return True

        held = share_of_buckets(self.share_index, self.share_count)
        return bool(held[buckets].all())


class ReplicaLink:
    """A channel to a replica with the stubs of its services, and its bulk lane."""

    def __init__(self, address: str, max_message_bytes: int) -> None:
        self._channel = channel.open_channel(address, max_message_bytes)
        self.rows = replica_pb2_grpc.ReplicaStub(self._channel)
        self.predictions = prediction_pb2_grpc.PredictionStub(self._channel)
        self.lookups = LookupLink(address, self.rows)

    def close(self) -> None:
        self.lookups.close()
        self._channel.close()


def _on_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="find-replicas", daemon=True).start()


class ReplicaPool:
    """The replicas that are known, each with its link. Thread-safe: `_lock` guards everything.

    `find` says where they are now. It may wait for a controller that is away, so only the first
    call waits for it. Later ones use the replicas of the last time, while it is asked on a thread.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[KnownReplica]],
        max_message_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = _on_a_thread,
    ) -> None:
        """`start` begins some work, and need not wait for its end."""
        self._find = find
        self._max_message_bytes = max_message_bytes
        self._clock = clock
        self._start = start

        self._lock = threading.Lock()
        self._known: list[KnownReplica] = []
        self._links: dict[str, ReplicaLink] = {}
        self._seen_s: dict[str, float] = {}
        self._failed_s: dict[str, float] = {}

        self._asked_s = -_ASK_EVERY_S
        self._is_looking = False
        self._turn = itertools.count()
        self._is_closed = False

    def close(self) -> None:
        """From now on every call raises InvalidRequest."""
        with self._lock:
            self._is_closed = True
            for opened in self._links.values():
                opened.close()

            self._links = {}

    def holding(self, buckets: NDArray[np.bool_]) -> list[KnownReplica]:
        """Those that hold all of these buckets, in the order in which to ask them.

        They take turns. One that failed a moment ago comes last.
        """
        self._look()
        with self._lock:
            holders = [replica for replica in self._known if replica.holds(buckets)]
            turn = next(self._turn)

            if not holders:
                known = ", ".join(replica.address for replica in self._known) or "none"
                raise PeerUnreachable(
                    f"no replica that holds these ids is known; known are: {known}. "
                    "Start one with `megalith replica`, or `megalith up --replicas 1`"
                )

            first = turn % len(holders)
            rotated = holders[first:] + holders[:first]
            return sorted(rotated, key=self._has_failed_lately)

    def _has_failed_lately(self, replica: KnownReplica) -> bool:
        """`_lock` is held."""
        failed_s = self._failed_s.get(replica.address)
        if failed_s is None:
            return False

        return self._clock() - failed_s < _AVOID_S

    def cuts(self) -> list[int]:
        """Into how many shares ids may be cut, in the order in which to try; 1 = replicas of all.

        Whole replicas come before shares, and many shares before few. But one of which a share
        failed a moment ago comes last. Every share of a number is there: replicas of another number
        of shares may be starting, or some of them dead.
        """
        self._look()
        with self._lock:
            answering: dict[int, dict[int, bool]] = {}
            for replica in self._known:
                count = replica.share_count or 1
                shares = answering.setdefault(count, {})
                answers = not self._has_failed_lately(replica)
                shares[replica.share_index] = answers or shares.get(replica.share_index, False)

        if not answering:
            return [1]

        counts = sorted(answering, key=lambda count: (count != 1, -count))
        whole = [count for count in counts if len(answering[count]) == count]
        return sorted(whole or counts[:1], key=lambda count: not all(answering[count].values()))

    def link(self, replica: KnownReplica) -> ReplicaLink:
        """The way to it, which is opened at the first use."""
        address = replica.address
        with self._lock:
            self._check_open()
            opened = self._links.get(address)
            if opened is None:
                opened = ReplicaLink(address, self._max_message_bytes)
                self._links[address] = opened

            return opened

    def failed(self, replica: KnownReplica) -> None:
        """It did not answer: others are asked first for a moment, and looked for anew."""
        with self._lock:
            self._failed_s[replica.address] = self._clock()
            self._asked_s = -_ASK_EVERY_S

    def _look(self) -> None:
        now_s = self._clock()
        with self._lock:
            self._check_open()
            if self._is_looking or now_s - self._asked_s < _ASK_EVERY_S:
                return

            self._asked_s = now_s
            is_first = not self._known
            self._is_looking = not is_first

        if is_first:
            self._take(self._find())
            return

        try:
            self._start(self._look_again)
        except RuntimeError as error:  # the system gives this process no thread now
            logger.warning("replicas are looked for later: %s", error)
            with self._lock:
                self._is_looking = False

    def _look_again(self) -> None:
        try:
            self._take(self._find())
        except MegalithError as error:
            logger.debug("the replicas of before are asked on: %s", error)
        except Exception:
            logger.exception("looking for replicas failed")
        finally:
            with self._lock:
                self._is_looking = False

    def _take(self, found: Sequence[KnownReplica]) -> None:
        with self._lock:
            if found:
                self._known = list(found)

            self._close_those_gone(self._clock())

    def _check_open(self) -> None:
        """`_lock` is held."""
        if self._is_closed:
            raise InvalidRequest("the connection to the replicas is closed")

    def _close_those_gone(self, now_s: float) -> None:
        for replica in self._known:
            self._seen_s[replica.address] = now_s

        gone = [address for address, at_s in self._seen_s.items() if now_s - at_s > _CLOSE_S]
        for address in gone:
            del self._seen_s[address]
            self._failed_s.pop(address, None)

            opened = self._links.pop(address, None)
            if opened is not None:
                opened.close()
