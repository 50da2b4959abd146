"""Requests to several servers at once, from the first byte sent to the last reply, again where a failure may pass."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from megalith.client import _retry
from megalith.client._data_call import Started
from megalith.wire.errors import MegalithError, Overloaded
from megalith.wire.routing import Routing

_ATTEMPT_S = 30.0  # one try of one call; a hung server is asked again, or its replacement is, after it


class Request(Protocol):
    """Any data request: routed at an epoch, in a run."""

    epoch: int
    run_id: str

    def ByteSize(self) -> int: ...


Q = TypeVar("Q", bound=Request)
Begin = Callable[[str, Q, float], Started]  # address, request, deadline on the monotonic clock


class Peers(Protocol):
    """What an exchange needs to know of the servers."""

    def routing(self) -> Routing: ...

    def refresh(self, timeout_s: float | None = None) -> Routing: ...

    def errors_of(self, index: int, address: str) -> AbstractContextManager[None]:
        """Inside, errors are MegalithErrors that name the server."""


class Exchange(Generic[Q]):
    """One request to each of several servers: `send`, then `finish` or `abandon`. Used by one thread at a time.

    What passes between `send` and `finish` is the caller's own time: `timeout_s` bounds what they wait, together. The
    same requests stay valid under a newer map because a cluster's bucket owners do not change while it lives.
    """

    def __init__(self, peers: Peers, begin: Begin[Q], requests: dict[int, Q], timeout_s: float) -> None:
        self._peers, self._begin, self._left_s = peers, begin, timeout_s
        self._pending, self._replies = dict(requests), dict[int, Any]()
        self._started: dict[int, tuple[str, Started]] = {}
        self._failures: list[MegalithError] = []

    def send(self) -> None:
        """Send each request to its ps index, all at once. What goes wrong is met by `finish`."""
        began = time.monotonic()
        self._send(began + self._left_s)
        self._left_s -= time.monotonic() - began

    def finish(self) -> dict[int, Any]:
        """Replies by ps index. A request that failed for a passing reason is sent again, with a fresh map, until the
        time is over; those answered are not repeated.
        """  # noqa: D205  # the first sentence is the contract
        deadline = time.monotonic() + self._left_s

        def again() -> None:
            if not all(isinstance(error, Overloaded) for error in self._failures):
                # Servers that are only overloaded stand where the map says; the controller need not be asked too.
                self._peers.refresh(max(0.0, deadline - time.monotonic()))
            self._send(deadline)
            self._receive(deadline)

        # The first try is by itself: setting up tenacity costs 0.05 ms, which most calls never need.
        try:
            self._receive(deadline)
        except _retry.PASSING:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
            _retry.until(left_s)(again)
        return self._replies

    def abandon(self) -> None:
        """Give up what has not been answered."""
        for _, call in self._started.values():
            call.abandon()
        self._started.clear()

    def _send(self, deadline: float) -> None:
        """Begin one try of everything pending."""
        routing = self._peers.routing()
        deadline = min(deadline, time.monotonic() + _ATTEMPT_S)
        self._failures = []
        try:
            for index, request in self._pending.items():
                request.epoch, request.run_id = routing.epoch, routing.run_id
                address = routing.address_of(index)
                try:
                    with self._peers.errors_of(index, address):
                        self._started[index] = address, self._begin(address, request, deadline)
                except MegalithError as error:
                    self._failures.append(error)
        except BaseException:  # an error that no server made, such as an interrupt
            self.abandon()
            raise

    def _receive(self, deadline: float) -> None:
        """End the try. Raises what went wrong, errors that no retry mends first."""
        deadline = min(deadline, time.monotonic() + _ATTEMPT_S)
        try:
            for index in list(self._started):
                address, call = self._started.pop(index)
                try:
                    with self._peers.errors_of(index, address):
                        self._replies[index] = call.finish(deadline)
                        del self._pending[index]
                except MegalithError as error:
                    self._failures.append(error)
        finally:
            self.abandon()
        if self._failures:
            raise min(self._failures, key=lambda error: isinstance(error, _retry.PASSING))
