"""Requests to several servers at once, from the first byte sent to the last reply.

A request that failed for a reason that may pass is sent again.
"""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from megalith.client._transport.links import Links
from megalith.client._transport.map_in_use import MapInUse
from megalith.client._transport.requests import CallOnItsWay, Request
from megalith.control import retry
from megalith.errors import (
    DeadlinePassed,
    MegalithError,
    OutcomeLost,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
)
from megalith.wire import forking
from megalith.wire.lane import NotSent
from megalith.wire.routing import Routing, ps_names

logger = logging.getLogger(__name__)

_GRACE_S = 0.02  # to take one reply that has arrived
_MOST_BROKEN = 10  # tries of a write that the transport breaks before nobody is asked any more
# One try of one call; a hung server is asked again, or its replacement is, after it.
ATTEMPT_S = 30.0


class UnknownWrites:
    """Counts parts of writes of which nobody will know whether they were applied. Thread-safe."""

    def __init__(self) -> None:
        self._start_over()
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    @property
    def count(self) -> int:
        with self._lock:
            return self._count

    def add(self, index: int, why: str) -> None:
        """Count one part, which was sent to ps `index`."""
        with self._lock:
            self._count += 1

        logger.warning("a write may or may not have been applied at ps-%d: %s", index, why)


@dataclass(frozen=True, slots=True)
class _Try:
    """One try of one request, on its way.

    `instance` is the process that the map names for that server.
    """

    address: str
    instance: str
    call: CallOnItsWay


class Exchange:
    """One request to each of several servers: `send`, then `finish` or `abandon`.

    Used by one thread at a time. What passes between `send` and `finish` is the caller's own time:
    `timeout_s` bounds what they wait, together. The same requests stay valid under a newer map
    because a cluster's bucket owners do not change while it lives.

    A write is numbered, so a server that has applied it answers it again and does not apply it
    again. Its replacement is told that a part may have reached the process before it. If it knows
    which writes are in its rows, it answers or applies the part; otherwise the part is lost, and
    counted among the unknown writes.
    """

    def __init__(
        self,
        map_in_use: MapInUse,
        links: Links,
        requests: dict[int, Request],
        timeout_s: float,
        unknown: UnknownWrites | None = None,
    ) -> None:
        """With `unknown`, the requests are writes."""
        self._map = map_in_use
        self._links = links

        self._timeout_s = timeout_s
        self._left_s = timeout_s
        self._unknown = unknown

        self._pending = dict(requests)
        self._replies: dict[int, Any] = {}

        # Parts of a write that nobody will know about, and why.
        self._lost: dict[int, str] = {}
        # The process that may have got a pending part of a write.
        self._reached: dict[int, str] = {}

        self._tries: dict[int, _Try] = {}
        self._failures: list[MegalithError] = []

        self._first_sent_at: float | None = None  # on the monotonic clock
        self._is_asked_again = False
        self._num_broken = 0  # tries that the transport broke

    @property
    def is_open(self) -> bool:
        """Whether this is a write, parts of which may be applied and are not known to be."""
        if self._unknown is None or not self._pending:
            return False

        return bool(self._reached or self._replies or self._lost)

    @property
    def open_parts(self) -> list[int]:
        """Servers whose answer is missing."""
        return sorted(self._pending)

    def has_replies(self) -> bool:
        """Whether every server has begun to answer the try that is on its way."""
        return all(each.call.has_reply() for each in self._tries.values())

    def send(self) -> None:
        """Send each request to its ps index, all at once. What goes wrong is met by `finish`."""
        began = time.monotonic()
        try:
            self._send(began + self._left_s)
        except BaseException:
            self._allow_the_whole_time_again()
            raise

        self._left_s -= time.monotonic() - began

    def finish(self) -> dict[int, Any]:
        """Replies by ps index.

        A request that failed for a passing reason is sent again, with a fresh map, until the time
        is over; those answered are not repeated. What nobody has sent yet is sent now.

        A write that is open then is OutcomeUnknown: `finish` may be called again, and has the whole
        time again. One of which a part is lost is OutcomeLost. Any other error of a server ends the
        write, and what is open of it is lost.
        """
        deadline = time.monotonic() + self._left_s
        try:
            self._finish(deadline)
        except retry.PASSING as error:
            self._allow_the_whole_time_again()
            if self.is_open:
                raise self._outcome_unknown(error) from error

            raise
        except MegalithError as error:
            self._lose_what_is_open(error)
            raise
        except BaseException:
            self._allow_the_whole_time_again()
            raise

        if self._lost:
            raise OutcomeLost("; ".join(self._lost.values()))

        return self._replies

    def abandon(self) -> None:
        """Give up what has not been answered."""
        for index, each in self._tries.items():
            self._may_have_reached(index, each)
            each.call.abandon()

        self._tries.clear()

    def _finish(self, deadline: float) -> None:
        def again() -> None:
            are_all_overloaded = all(isinstance(error, Overloaded) for error in self._failures)
            if not are_all_overloaded or self._is_asked_again:
                # Servers that are only overloaded stand where the map says; the controller need not
                # be asked too.
                self._map.refresh(max(0.0, deadline - time.monotonic()))

            self._send(deadline)
            self._receive(deadline)

        # The first try is by itself: setting up tenacity costs 0.05 ms, which most calls never
        # need.
        if not self._is_asked_again:
            try:
                if self._first_sent_at is None:
                    self._send(deadline)

                self._receive(deadline)
                return
            except retry.PASSING:
                if time.monotonic() >= deadline:
                    raise

        retry.until(max(0.0, deadline - time.monotonic()))(again)

    def _send(self, deadline: float) -> None:
        """Begin one try of everything pending."""
        if self._first_sent_at is None:
            self._first_sent_at = time.monotonic()

        routing = self._map.routing()
        deadline = min(deadline, time.monotonic() + ATTEMPT_S)
        self._failures = []

        try:
            for index, request in list(self._pending.items()):
                self._send_one(index, request, routing, deadline)
        except BaseException:  # an error that no server made, such as an interrupt
            self.abandon()
            raise

    def _send_one(self, index: int, request: Request, routing: Routing, deadline: float) -> None:
        address = routing.address_of(index)
        instance = routing.instances[index] if routing.instances else ""

        message: Any = request.message
        message.epoch = routing.epoch
        message.run_id = routing.run_id
        message.is_controller_away = self._map.is_controller_away()

        if index in self._reached:
            self._mark_repeated(message)
            message.reached_predecessor = self._reached[index] != instance

        try:
            self._map.check_session()
            with self._links.errors_of(index, address):
                call = self._links.start(address, request, deadline)
                self._tries[index] = _Try(address, instance, call)
        except MegalithError as error:
            self._failures.append(self._passing_if_broken(error))

    def _mark_repeated(self, message: Any) -> None:
        """Say that a write may have reached its server before."""
        assert self._first_sent_at is not None
        message.is_repeated = True
        message.first_try_ms_ago = 1 + int((time.monotonic() - self._first_sent_at) * 1000)

    def _receive(self, deadline: float) -> None:
        """End the try. Raises what went wrong, errors that no retry mends first."""
        deadline = min(deadline, time.monotonic() + ATTEMPT_S)
        try:
            for index, each in list(self._tries.items()):
                self._receive_one(index, each, deadline)
                del self._tries[index]
        finally:
            self.abandon()

        if self._failures:
            raise min(self._failures, key=_is_passing)

    def _receive_one(self, index: int, each: _Try, deadline: float) -> None:
        # A reply that is there is taken, though a server before this one has used up the time.
        limit = max(deadline, time.monotonic() + _GRACE_S)
        try:
            with self._links.errors_of(index, each.address):
                reply = each.call.finish(limit)
        except OutcomeLost as error:
            self._lose(index, str(error))
            return
        except MegalithError as error:
            if _is_without_answer(error):
                self._may_have_reached(index, each)

            self._failures.append(self._passing_if_broken(error))
            return

        self._replies[index] = reply
        self._pending.pop(index)
        self._reached.pop(index, None)

    def _passing_if_broken(self, error: MegalithError) -> MegalithError:
        """The error, or PeerUnreachable for a write that the transport broke.

        No server has answered such a write, and under its number it may be repeated. One that broke
        again and again, and that its caller has waited for already, ends: the writes after it would
        all wait for it.
        """
        if self._unknown is None or error.is_answer or _is_passing(error):
            return error

        self._num_broken += 1
        if self._is_asked_again and self._num_broken >= _MOST_BROKEN:
            return error

        broken = PeerUnreachable(f"the call was broken on its way: {error}")
        broken.__cause__ = error
        return broken

    def _may_have_reached(self, index: int, each: _Try) -> None:
        if self._unknown is not None:
            self._reached.setdefault(index, each.instance)

    def _lose_what_is_open(self, error: MegalithError) -> None:
        """After an error that no retry mends, nobody asks for what is open any more."""
        for index in list(self._reached):
            self._lose(index, f"a write was given up before ps-{index} answered it: {error}")

        self._pending.clear()

    def _lose(self, index: int, why: str) -> None:
        assert self._unknown is not None
        self._lost[index] = why
        self._pending.pop(index)
        self._reached.pop(index, None)
        self._unknown.add(index, why)

    def _allow_the_whole_time_again(self) -> None:
        self._left_s = self._timeout_s
        self._is_asked_again = True

    def _outcome_unknown(self, error: MegalithError) -> OutcomeUnknown:
        servers = ps_names(self.open_parts)
        return OutcomeUnknown(
            f"{servers} did not answer a write within {self._timeout_s:.3g} s, "
            f"so whether it was applied there is not known ({error}). "
            "It is still under way: the next write of this client, wait_for_last_write() or "
            "close() asks for its outcome first. "
            "Do not send it again as a new write, or it may be applied twice"
        )


def _is_passing(error: MegalithError) -> bool:
    return isinstance(error, retry.PASSING)


def _is_without_answer(error: MegalithError) -> bool:
    """Whether a server may have got a request that ended so.

    Any other error is the server's answer, and it has applied nothing.
    """
    if isinstance(error, NotSent):
        return False

    return isinstance(error, PeerUnreachable | DeadlinePassed) or not error.is_answer
