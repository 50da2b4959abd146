"""Requests to several servers at once, from the first byte sent to the last reply, again where a failure may pass."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from megalith.client import _retry
from megalith.client._data_call import NotSent, Started
from megalith.wire.errors import (
    DeadlinePassed,
    MegalithError,
    OutcomeLost,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
)
from megalith.wire.routing import Routing

_GRACE_S = 0.02  # to take one reply that has arrived
_ATTEMPT_S = (
    30.0  # one try of one call; a hung server is asked again, or its replacement is, after it
)


class Request(Protocol):
    """Any data request: routed at an epoch, in a run."""

    epoch: int
    run_id: str
    is_controller_away: bool

    def ByteSize(self) -> int: ...


Q = TypeVar("Q", bound=Request)
Begin = Callable[[str, Q, float], Started]  # address, request, deadline on the monotonic clock


class Peers(Protocol):
    """What an exchange needs to know of the servers."""

    def routing(self) -> Routing: ...

    def refresh(self, timeout_s: float | None = None) -> Routing: ...

    def is_controller_away(self) -> bool:
        """Whether the controller was asked a moment ago and could not say what map it has."""

    def errors_of(self, index: int, address: str) -> AbstractContextManager[None]:
        """Inside, errors are MegalithErrors that name the server."""

    def count_unknown(self, index: int, why: str) -> None:
        """Nobody will know whether that server has applied its part of a write."""


@dataclass(frozen=True, slots=True)
class _Try:
    """One try of one request, on its way. `instance` is the process that the map names for that server."""

    address: str
    instance: str
    call: Started


class Exchange(Generic[Q]):
    """One request to each of several servers: `send`, then `finish` or `abandon`. Used by one thread at a time.

    What passes between `send` and `finish` is the caller's own time: `timeout_s` bounds what they wait, together. The
    same requests stay valid under a newer map because a cluster's bucket owners do not change while it lives.

    A write is numbered, so a server that has applied it answers it again and does not apply it again. But its
    replacement remembers nothing: a part that may have reached a server which was replaced since is not sent again. It
    is lost, and counted.
    """

    def __init__(
        self,
        peers: Peers,
        begin: Begin[Q],
        requests: dict[int, Q],
        timeout_s: float,
        *,
        is_write: bool = False,
    ) -> None:
        self._peers = peers
        self._begin = begin
        self._timeout_s = timeout_s
        self._left_s = timeout_s
        self._is_write = is_write
        self._pending = dict(requests)
        self._replies: dict[int, Any] = {}
        self._lost: dict[int, str] = {}  # parts of a write that nobody will know about, and why
        self._reached: dict[
            int, str
        ] = {}  # the process that may have got a pending part of a write
        self._started: dict[int, _Try] = {}
        self._failures: list[MegalithError] = []
        self._first_sent_at: float | None = None  # on the monotonic clock
        self._is_asked_again = False

    @property
    def is_open(self) -> bool:
        """Whether a part of this write may be applied and another, or the same one, is not known to be."""
        return (
            self._is_write
            and bool(self._pending)
            and bool(self._reached or self._replies or self._lost)
        )

    @property
    def open_parts(self) -> list[int]:
        """Servers whose answer is missing."""
        return sorted(self._pending)

    def send(self) -> None:
        """Send each request to its ps index, all at once. What goes wrong is met by `finish`."""
        began = time.monotonic()
        try:
            self._send(began + self._left_s)
        except BaseException:
            self._begin_again()
            raise
        self._left_s -= time.monotonic() - began

    def finish(self) -> dict[int, Any]:
        """Replies by ps index. A request that failed for a passing reason is sent again, with a fresh map, until the
        time is over; those answered are not repeated. What nobody has sent yet is sent now.

        A write that is open then is OutcomeUnknown: `finish` may be called again, and has the whole time again. One of
        which a part is lost is OutcomeLost. Any other error of a server ends the write, and what is open of it is lost.
        """  # noqa: D205  # the first sentence is the contract
        deadline = time.monotonic() + self._left_s
        try:
            self._finish(deadline)
        except _retry.PASSING as error:
            self._begin_again()
            if self.is_open:
                raise self._unknown(error) from error
            raise
        except MegalithError as error:
            self._give_up(error)
            raise
        except BaseException:
            self._begin_again()
            raise
        if self._lost:
            raise OutcomeLost("; ".join(self._lost.values()))
        return self._replies

    def _finish(self, deadline: float) -> None:
        def again() -> None:
            if (
                not all(isinstance(error, Overloaded) for error in self._failures)
                or self._is_asked_again
            ):
                # Servers that are only overloaded stand where the map says; the controller need not be asked too.
                self._peers.refresh(max(0.0, deadline - time.monotonic()))
            self._send(deadline)
            self._receive(deadline)

        # The first try is by itself: setting up tenacity costs 0.05 ms, which most calls never need.
        if not self._is_asked_again:
            try:
                if self._first_sent_at is None:
                    self._send(deadline)
                self._receive(deadline)
                return
            except _retry.PASSING:
                if time.monotonic() >= deadline:
                    raise
        _retry.until(max(0.0, deadline - time.monotonic()))(again)

    def _give_up(self, error: MegalithError) -> None:
        """After an error that no retry mends, nobody asks for what is open any more."""
        for index in list(self._reached):
            self._lose(index, f"a write was given up before ps {index} answered it: {error}")
        self._pending.clear()

    def _begin_again(self) -> None:
        self._left_s = self._timeout_s
        self._is_asked_again = True

    def _unknown(self, error: MegalithError) -> OutcomeUnknown:
        servers = ", ".join(map(str, self.open_parts))
        return OutcomeUnknown(
            f"ps {servers} did not answer a write within {self._timeout_s:.3g} s, so whether it was applied there is "
            f"not known ({error}). It is still under way: the next write of this client, settle() or close() asks for "
            "its outcome first. Do not send it again as a new write, or it may be applied twice"
        )

    def abandon(self) -> None:
        """Give up what has not been answered."""
        for index, started in self._started.items():
            self._may_have_reached(index, started)
            started.call.abandon()
        self._started.clear()

    def _may_have_reached(self, index: int, started: _Try) -> None:
        if self._is_write:
            self._reached.setdefault(index, started.instance)

    def _send(self, deadline: float) -> None:
        """Begin one try of everything pending."""
        if self._first_sent_at is None:
            self._first_sent_at = time.monotonic()
        routing = self._peers.routing()
        deadline = min(deadline, time.monotonic() + _ATTEMPT_S)
        self._failures = []
        try:
            for index, request in list(self._pending.items()):
                address = routing.address_of(index)
                instance = routing.instances[index] if routing.instances else ""
                reached = self._reached.get(index, instance)
                if reached != instance:
                    self._lose(
                        index,
                        f"ps {index} was replaced before it answered a write; whether the write was applied there will "
                        "never be known, and it is not sent again",
                    )
                    continue
                request.epoch, request.run_id = routing.epoch, routing.run_id
                request.is_controller_away = self._peers.is_controller_away()
                if index in self._reached:
                    self._mark_repeated(request, self._first_sent_at)
                try:
                    with self._peers.errors_of(index, address):
                        call = self._begin(address, request, deadline)
                        self._started[index] = _Try(address, instance, call)
                except MegalithError as error:
                    self._failures.append(error)
        except BaseException:  # an error that no server made, such as an interrupt
            self.abandon()
            raise

    def _mark_repeated(self, request: Any, first_sent_at: float) -> None:
        """Say that a write may have reached its server before."""
        request.is_repeated = True
        request.first_try_ms_ago = 1 + int((time.monotonic() - first_sent_at) * 1000)

    def _receive(self, deadline: float) -> None:
        """End the try. Raises what went wrong, errors that no retry mends first."""
        deadline = min(deadline, time.monotonic() + _ATTEMPT_S)
        try:
            for index, started in list(self._started.items()):
                try:
                    with self._peers.errors_of(index, started.address):
                        # A reply that is there is taken, though a server before this one has used up the time.
                        reply = started.call.finish(max(deadline, time.monotonic() + _GRACE_S))
                    self._replies[index] = reply
                    del self._pending[index]
                    self._reached.pop(index, None)
                except OutcomeLost as error:
                    self._lose(index, str(error))
                except MegalithError as error:
                    self._failures.append(error)
                    if _is_without_answer(error):
                        self._may_have_reached(index, started)
                del self._started[index]
        finally:
            self.abandon()
        if self._failures:
            raise min(self._failures, key=lambda error: isinstance(error, _retry.PASSING))

    def _lose(self, index: int, why: str) -> None:
        self._lost[index] = why
        del self._pending[index]
        self._reached.pop(index, None)
        self._peers.count_unknown(index, why)


def _is_without_answer(error: MegalithError) -> bool:
    """Whether a server may have got a request that ended so. Other errors are its answer: it has applied nothing."""
    if isinstance(error, NotSent):
        return False
    return isinstance(error, PeerUnreachable | DeadlinePassed) or not error.is_answer
