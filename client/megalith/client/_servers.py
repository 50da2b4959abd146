"""Calls to all parameter servers of a step at once, found again when they move."""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import grpc

from megalith.client import _retry
from megalith.client._controller import Controller
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire import channel
from megalith.wire.errors import MegalithError, MessageTooLarge
from megalith.wire.routing import Routing
from megalith.wire.status import translated

_ATTEMPT_S = 30.0  # one try of one call; a hung server is asked again, or its replacement is, after it


class Request(Protocol):
    """Any data request: routed at an epoch."""

    epoch: int

    def ByteSize(self) -> int: ...


Q = TypeVar("Q", bound=Request)
A = TypeVar("A")
Stub = parameter_server_pb2_grpc.ParameterServerStub


class Servers:
    """Channels to the parameter servers and the routing map. `_lock` guards both."""

    def __init__(self, controller: Controller, max_message_bytes: int) -> None:
        self._controller, self._max_message_bytes = controller, max_message_bytes
        self._lock = threading.Lock()
        self._routing: Routing | None = None
        self._channels: dict[str, grpc.Channel] = {}

    def routing(self) -> Routing:
        """The map in use; asks the controller for the first one."""
        with self._lock:
            if self._routing is not None:
                return self._routing
        return self.refresh()

    def refresh(self, timeout_s: float | None = None) -> Routing:
        """The controller's map now, whatever this client had before; channels to servers outside it are closed."""
        newest = self._controller.routing(timeout_s)
        with self._lock:
            self._routing = newest
            for address in [address for address in self._channels if address not in newest.addresses]:
                self._channels.pop(address).close()
            return newest

    def call(
        self, method: Callable[[Stub], grpc.UnaryUnaryMultiCallable[Q, A]], requests: dict[int, Q], timeout_s: float
    ) -> dict[int, A]:
        """Send each request to its ps index, all at once, until all are answered; replies by ps index.

        `timeout_s` bounds the whole call. A request that failed for a passing reason is sent again, with a fresh map;
        those answered are not repeated. The same requests stay valid under a newer map because a cluster's bucket
        owners do not change while it lives.
        """
        for request in requests.values():
            self._check_size(request)
        pending, replies = dict(requests), dict[int, A]()

        deadline = time.monotonic() + timeout_s

        def attempt() -> None:
            failures = self._send(method, pending, replies, deadline)
            if failures:
                if isinstance(failures[0], _retry.PASSING):
                    self.refresh(max(0.0, deadline - time.monotonic()))
                raise failures[0]

        _retry.until(timeout_s)(attempt)
        return replies

    def _send(
        self,
        method: Callable[[Stub], grpc.UnaryUnaryMultiCallable[Q, A]],
        pending: dict[int, Q],
        replies: dict[int, A],
        deadline: float,
    ) -> list[MegalithError]:
        """One try of everything pending. Returns what went wrong, errors that no retry mends first."""
        routing = self.routing()
        timeout_s = max(0.0, min(_ATTEMPT_S, deadline - time.monotonic()))
        calls, failures = {}, []
        for index, request in pending.items():
            request.epoch = routing.epoch
            try:
                with translated(f"ps {index} at {routing.addresses[index]}"):
                    calls[index] = method(self._stub(routing.addresses[index])).future(request, timeout=timeout_s)
            except MegalithError as error:
                failures.append(error)
        for index, call in calls.items():
            try:
                with translated(f"ps {index} at {routing.addresses[index]}"):
                    replies[index] = call.result()
                    del pending[index]
            except MegalithError as error:
                failures.append(error)
        return sorted(failures, key=lambda error: isinstance(error, _retry.PASSING))

    def _stub(self, address: str) -> Stub:
        with self._lock:
            if address not in self._channels:
                self._channels[address] = channel.open_channel(address, self._max_message_bytes)
            return Stub(self._channels[address])

    def _check_size(self, request: Request) -> None:
        size = request.ByteSize()
        if size > self._max_message_bytes:
            raise MessageTooLarge(
                f"a request of {size} bytes is above the limit of {self._max_message_bytes}; "
                "send fewer ids per call, or raise max_message_bytes here and --max-message-bytes on the servers"
            )

    def status_of(self, index: int) -> pb.GetPsStatusResponse:
        """What one server holds."""
        address = self.routing().addresses[index]
        with translated(f"ps {index} at {address}"):
            return self._stub(address).GetPsStatus(pb.GetPsStatusRequest(), timeout=_ATTEMPT_S)

    def close(self) -> None:
        with self._lock:
            for open_channel in self._channels.values():
                open_channel.close()
            self._channels.clear()
