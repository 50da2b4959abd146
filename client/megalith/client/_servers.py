"""Calls to all parameter servers of a step at once, found again when they move."""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from megalith.client import _retry
from megalith.client._begun import Begun, UnderWay
from megalith.client._controller import Controller
from megalith.client._data_call import DataCall, NotSent, Reply, Started
from megalith.client._exchange import Begin, Exchange, Q, Request
from megalith.client._lane import Lane, LaneClosed, LaneFull
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire import channel, forking, frames
from megalith.wire.budget import ByteBudget
from megalith.wire.errors import InvalidRequest, MessageTooLarge, PeerUnreachable
from megalith.wire.routing import Routing, check_run
from megalith.wire.status import translated

logger = logging.getLogger(__name__)

_ASK_MAP_S = 1.0  # one question for a newer map; the one in use stays if there is no answer
# A client that got no answer may use a server without a lease, until it has to ask again. Less than the servers' lease:
# a controller that began to serve after the question names no other server in its place so soon.
_AWAY_S = 2.5
_ASK_S = (
    30.0  # one try of one question; a hung server is asked again, or its replacement is, after it
)

A = TypeVar("A")
B = TypeVar("B", pb.GetPsStatusRequest, pb.ExpireRequest)
R = TypeVar("R")
Stub = parameter_server_pb2_grpc.ParameterServerStub


class Servers:
    """Channels and lanes to the parameter servers, and the routing map.

    `_lock` guards the map and what is known about it, the channels, the lanes, `_is_closed` and `_writes_unknown`.
    `_budget` bounds the bytes of calls under way, of which `_under_way` are those that were begun and wait to be asked
    about.
    """

    def __init__(
        self,
        controller: Controller,
        max_message_bytes: int,
        max_inflight_bytes: int,
        max_begun: int,
        *,
        use_lane: bool = True,
    ) -> None:
        self._controller, self._max_message_bytes, self._use_lane = (
            controller,
            max_message_bytes,
            use_lane,
        )
        self._max_inflight_bytes = max_inflight_bytes
        self._budget, self._under_way, self._max_begun = (
            ByteBudget(max_inflight_bytes),
            UnderWay(),
            max_begun,
        )
        self._lock = threading.Lock()
        self._routing: Routing | None = None
        self._least_epoch = 0  # a map before it is known to be out of date
        self._away_until: float | None = (
            None  # None: the controller answered when it was last asked
        )
        self._channels: dict[str, grpc.Channel] = {}
        self._lanes: dict[
            str, Lane | None
        ] = {}  # None: this server has no lane that can be reached
        self._is_closed = False
        self._writes_unknown = 0
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """A forked child keeps the map and the terms of the lanes, and opens channels of its own."""
        self._lock = threading.Lock()
        self._budget = ByteBudget(self._max_inflight_bytes)
        self._channels = {}
        self._writes_unknown = 0

    def routing(self) -> Routing:
        """The map in use; asks the controller for the first one, and for one that is known to be newer."""
        with self._lock:
            is_due = self._away_until is not None and time.monotonic() >= self._away_until
            if (
                self._routing is not None
                and self._routing.epoch >= self._least_epoch
                and not is_due
            ):
                return self._routing
        return self.refresh()

    def expect_epoch(self, epoch: int) -> None:
        """There is a map of that epoch: from now on no older one is used."""
        with self._lock:
            self._least_epoch = max(self._least_epoch, epoch)

    def is_controller_away(self) -> bool:
        """Whether the controller was asked a moment ago and could not say what map it has."""
        with self._lock:
            return self._away_until is not None and time.monotonic() < self._away_until

    def refresh(self, timeout_s: float | None = None) -> Routing:
        """The controller's map now, whatever this client had before; servers outside it are let go.

        A controller that does not answer is not waited for: the map in use stays, unless it is out of date. WrongRun if
        the controller is in another run than the one of the first map.
        """
        with self._lock:
            self._check_open()
            known, least_epoch = self._routing, self._least_epoch
        if known is None:
            newest = self._controller.routing(timeout_s)
        else:
            asked_at = time.monotonic()
            try:
                newest = self._controller.routing_now(
                    _ASK_MAP_S if timeout_s is None else min(timeout_s, _ASK_MAP_S), known.run_id
                )
            except _retry.PASSING:
                with self._lock:
                    self._away_until = asked_at + _AWAY_S
                if known.epoch < least_epoch:
                    raise
                return known
        with self._lock:
            self._away_until = None
            if self._routing is not None:  # another thread may have seen an older run meanwhile
                check_run(self._routing.run_id, newest.run_id, "the controller")
            self._routing = newest
            gone = [address for address in self._channels if address not in newest.addresses]
            channels = [self._channels.pop(address) for address in gone]
            lanes = [self._lanes.pop(address, None) for address in gone]
        _close(channels, lanes)
        return newest

    def call(
        self,
        method: Callable[[Stub], grpc.UnaryUnaryMultiCallable[Q, A]],
        requests: dict[int, Q],
        timeout_s: float,
    ) -> dict[int, A]:
        """Send each request to its ps index by a unary call, all at once, until all are answered; replies by ps index.

        `timeout_s` bounds the whole call.
        """
        return self._until_answered(self._unary(method), requests, timeout_s)

    def write(
        self,
        method: Callable[[Stub], grpc.UnaryUnaryMultiCallable[Q, A]],
        requests: dict[int, Q],
        timeout_s: float,
    ) -> Begun[dict[int, A]]:
        """Like `call` for numbered writes, which are still to be sent."""
        return self._write(self._unary(method), requests, timeout_s, lambda replies: replies)

    def push(
        self, calls: dict[int, DataCall], timeout_s: float, read: Callable[[dict[int, Any]], R]
    ) -> Begun[R]:
        """Pushes that are still to be sent, over the bulk lane of each server that has one."""
        return self._write(self._begin_data, calls, timeout_s, read)

    def _unary(self, method: Callable[[Stub], grpc.UnaryUnaryMultiCallable[Q, A]]) -> Begin[Q]:
        def begin(address: str, request: Q, deadline: float) -> Started:
            send = method(self._stub(address)).future
            timeout_s = max(0.0, deadline - time.monotonic())
            return _UnaryCall(
                forking.calls.follow(lambda: send(request, timeout=timeout_s)), address
            )

        return begin

    def exchange(self, calls: dict[int, DataCall], timeout_s: float) -> dict[int, Any]:
        """Like `call` for pulls, over the bulk lane of each server that has one."""
        return self._until_answered(self._begin_data, calls, timeout_s)

    def begin_pull(
        self, calls: dict[int, DataCall], timeout_s: float, read: Callable[[dict[int, Any]], R]
    ) -> Begun[R]:
        """Send as `exchange` does and wait when asked; `read` makes the result of the replies.

        With `max_begun` calls begun and not settled, the oldest is settled first.
        """
        self._make_place()
        begun = self._begun(self._begin_data, calls, timeout_s, read, is_write=False)
        self._under_way.add(begun)
        begun.send()
        return begun

    def begin_push(
        self, calls: dict[int, DataCall], timeout_s: float, read: Callable[[dict[int, Any]], R]
    ) -> Begun[R]:
        """Like `push`, for a caller who asks for the outcome later; it counts among the calls begun."""
        self._make_place()
        begun = self.push(calls, timeout_s, read)
        begun.leave_unattended()
        self._under_way.add(begun)
        return begun

    def _make_place(self) -> None:
        while len(self._under_way) >= self._max_begun and self._under_way.settle_oldest():
            pass

    def _write(
        self,
        begin: Begin[Q],
        requests: dict[int, Q],
        timeout_s: float,
        read: Callable[[dict[int, Any]], R],
    ) -> Begun[R]:
        return self._begun(begin, requests, timeout_s, read, is_write=True)

    def _begun(
        self,
        begin: Begin[Q],
        requests: dict[int, Q],
        timeout_s: float,
        read: Callable[[dict[int, Any]], R],
        *,
        is_write: bool,
    ) -> Begun[R]:
        """Requests that have room and are still to be sent."""
        deadline = time.monotonic() + timeout_s
        size = self._take_room(requests, timeout_s)

        def let_go(call: Begun[Any]) -> None:
            self._under_way.remove(call)
            self._budget.give_back(size)

        exchange = Exchange(self, begin, requests, deadline - time.monotonic(), is_write=is_write)
        return Begun(exchange, read, let_go)

    def count_unknown(self, index: int, why: str) -> None:
        """Nobody will know whether ps `index` has applied its part of a write."""
        with self._lock:
            self._writes_unknown += 1
        logger.warning("a write may or may not have been applied at ps %d: %s", index, why)

    @property
    def writes_unknown(self) -> int:
        """Parts of writes, each to one server, of which nobody will know whether they were applied."""
        with self._lock:
            return self._writes_unknown

    def _until_answered(
        self, begin: Begin[Q], requests: dict[int, Q], timeout_s: float
    ) -> dict[int, Any]:
        deadline = time.monotonic() + timeout_s
        size = self._take_room(requests, timeout_s)
        try:
            exchange = Exchange(self, begin, requests, deadline - time.monotonic())
            exchange.send()
            return exchange.finish()
        finally:
            self._budget.give_back(size)

    def _take_room(self, requests: Mapping[int, Request], timeout_s: float) -> int:
        """Hold the bytes of requests, which are returned; begun calls that are in the way are settled."""
        size = sum(self._checked_size(request) for request in requests.values())
        while not self._budget.has_room(size) and self._under_way.settle_oldest():
            pass
        self._budget.take(size, timeout_s)
        return size

    @contextmanager
    def errors_of(self, index: int, address: str) -> Iterator[None]:
        """Inside, errors are MegalithErrors that name the server; one that was not reached loses its lane."""
        try:
            with translated(f"ps {index} at {address}"):
                yield
        except PeerUnreachable:
            self._forget_lane(address)
            raise

    def _begin_data(self, address: str, call: DataCall, deadline: float) -> Started:
        lane = self._lane(address, deadline)
        if lane is not None and call.message.ByteSize() <= frames.MAX_HEAD_BYTES:
            try:
                return lane.start(call, deadline)
            except LaneFull as error:
                logger.debug("%s; a call to %s is unary", error, address)
            except LaneClosed as error:
                logger.warning("%s; calls to %s are unary", error, address)
                self._set_lane(address, None)
        timeout_s = max(0.0, deadline - time.monotonic())
        stub, message = self._stub(address), call.whole_message()
        send: Any = stub.Pull.future if isinstance(message, pb.PullRequest) else stub.Push.future
        return _UnaryCall(
            forking.calls.follow(lambda: send(message, timeout=timeout_s)), address, call
        )

    def _lane(self, address: str, deadline: float) -> Lane | None:
        """The lane of a server; asks for it at the first call, and after a failure."""
        if not self._use_lane:
            return None
        with self._lock:
            if address in self._lanes:
                return self._lanes[address]
        request = pb.NegotiateRequest(run_id=self.routing().run_id)
        negotiate = self._stub(address).Negotiate
        with forking.calls:
            terms = negotiate(request, timeout=max(0.0, deadline - time.monotonic()))
        lane = Lane(address, terms) if terms.lane_port else None
        return self._set_lane(address, lane)

    def _set_lane(self, address: str, lane: Lane | None) -> Lane | None:
        with self._lock:
            self._check_open()
            before, self._lanes[address] = self._lanes.get(address), lane
        _close((), [before])
        return lane

    def _forget_lane(self, address: str) -> None:
        """Negotiate again at the next call: its server was not reached."""
        with self._lock:
            lane = self._lanes.pop(address, None)
        _close((), [lane])

    def _stub(self, address: str) -> Stub:
        with self._lock:
            self._check_open()
            if address not in self._channels:
                self._channels[address] = channel.open_channel(address, self._max_message_bytes)
            return Stub(self._channels[address])

    def _checked_size(self, request: Request) -> int:
        size = request.ByteSize()
        if size > self._max_message_bytes:
            raise MessageTooLarge(
                f"a request of {size} bytes is above the limit of {self._max_message_bytes}; "
                "send fewer ids per call, or raise max_message_bytes here and --max-message-bytes on the servers"
            )
        return size

    def status_of(self, index: int, timeout_s: float) -> pb.GetPsStatusResponse:
        """What one server holds; asked again, with a fresh map, while it is away."""
        return self.ask(index, lambda stub: stub.GetPsStatus, pb.GetPsStatusRequest(), timeout_s)

    def ask(
        self,
        index: int,
        method: Callable[[Stub], grpc.UnaryUnaryMultiCallable[B, A]],
        request: B,
        timeout_s: float,
    ) -> A:
        """One server's answer to an idempotent request that no map routes; asked again while the server is away."""
        deadline = time.monotonic() + timeout_s

        def attempt() -> A:
            routing = self.routing()
            request.run_id = routing.run_id
            left_s = max(0.0, deadline - time.monotonic())
            try:
                address = routing.address_of(index)
                with self.errors_of(index, address), forking.calls:
                    stub = self._stub(address)
                    return method(stub)(request, timeout=min(_ASK_S, left_s))
            except _retry.PASSING:
                self.refresh(max(0.0, deadline - time.monotonic()))
                raise

        return _retry.until(timeout_s)(attempt)

    def _check_open(self) -> None:
        """A call that outlives the client opens nothing more; `_lock` is held."""
        if self._is_closed:
            raise InvalidRequest("the connection to the cluster is closed")

    def close(self) -> None:
        """Give up what is begun, and disconnect."""
        for call in self._under_way.all():
            call.abandon(
                InvalidRequest(
                    "the connection to the cluster was closed before the answer was asked for"
                )
            )
        with self._lock:
            self._is_closed = True
            channels, lanes = list(self._channels.values()), list(self._lanes.values())
            self._channels.clear()
            self._lanes.clear()
        _close(channels, lanes)


class _UnaryCall:
    """A unary call that is on its way."""

    def __init__(self, future: Any, address: str, call: DataCall | None = None) -> None:
        self._future, self._address, self._call = future, address, call

    def finish(self, deadline: float) -> Reply | Any:
        """The deadline is the one that the call was sent with."""
        try:
            reply = self._future.result()
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and _was_not_sent(error):
                raise NotSent(f"ps at {self._address}: {error.details()}") from error
            raise
        if self._call is not None:
            self._call.take(reply)
        return reply

    def abandon(self) -> None:
        self._future.cancel()


def _was_not_sent(error: grpc.Call) -> bool:
    """Whether grpc had no connection to send the call on; it says so in these words only."""
    details = error.details() or ""
    return error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(
        "failed to connect to all addresses"
    )


def _close(channels: Iterable[grpc.Channel], lanes: Iterable[Lane | None]) -> None:
    for open_channel in channels:
        open_channel.close()
    for lane in lanes:
        if lane is not None:
            lane.close()
