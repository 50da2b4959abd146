"""Calls to all parameter servers of a step at once, found again when they move."""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import grpc

from megalith.client._transport.exchange import ATTEMPT_S, Exchange, UnknownWrites
from megalith.client._transport.links import Links
from megalith.client._transport.map_in_use import MapInUse
from megalith.client._transport.pending_call import PendingCall, PendingCalls, Result
from megalith.client._transport.requests import DataCall, Request, Stub, UnaryRequest, WriteNumbers
from megalith.control import retry
from megalith.control.connection import Answer, RequestMessage
from megalith.control.controller import Controller
from megalith.errors import InvalidRequest, OutcomeUnknown
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import forking
from megalith.wire.budget import ByteBudget
from megalith.wire.routing import Routing

logger = logging.getLogger(__name__)

Question = TypeVar("Question", pb.GetPsStatusRequest, pb.ExpireRequest, pb.DropTableRequest)
MethodOf = Callable[[Stub], "grpc.UnaryUnaryMultiCallable[RequestMessage, Answer]"]
ReadReplies = Callable[[dict[int, Any]], Result]  # makes the result of a call of its replies


class Servers:
    """The parameter servers of a cluster. Thread-safe.

    A call goes this way: it takes room in `_budget`, which bounds the bytes of calls under way;
    an `Exchange` sends its requests by the map in use over the links, and reads the replies; a
    `PendingCall` keeps the outcome for whoever asks.

    Writes are numbered, and one at a time is on its way: the next one waits for the one before it.
    `_write_lock` guards the numbers and the last write, and is held while a write is sent and while
    the one before it is waited for. A forked child is another client: it numbers its own writes,
    and none of them is taken for one of its parent's.
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
        self._links = Links(max_message_bytes, use_lane=use_lane)
        self._map = MapInUse(controller, self._links)

        self._max_inflight_bytes = max_inflight_bytes
        self._budget = ByteBudget(max_inflight_bytes)
        self._max_begun = max_begun

        self._begun = PendingCalls()
        self._unknown = UnknownWrites()
        self._last_write: PendingCall[Any] | None = None
        self._start_writing()

        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        self._budget = ByteBudget(self._max_inflight_bytes)
        if self._last_write is not None:
            self._last_write.disown()

        self._last_write = None
        self._start_writing()

    def _start_writing(self) -> None:
        self._write_lock = threading.Lock()
        self._numbers = WriteNumbers()
        self._failed_unasked = 0

    # --- the map ---

    def routing(self) -> Routing:
        """The map in use."""
        return self._map.routing()

    def expect_epoch(self, epoch: int) -> None:
        """There is a map of that epoch: from now on no older one is used."""
        self._map.expect_epoch(epoch)

    def follow_session(self, is_in_session: Callable[[], bool]) -> None:
        """For who is in a session with the controller: `is_in_session` says whether it still is."""
        self._map.follow_session(is_in_session)

    # --- calls that may be repeated at will ---

    def call(
        self,
        method: MethodOf[RequestMessage, Answer],
        messages: Mapping[int, RequestMessage],
        timeout_s: float,
    ) -> dict[int, Answer]:
        """Send each message to its ps index by a unary call, all at once, until all are answered.

        Returns replies by ps index. `timeout_s` bounds the whole call.
        """
        return self._until_answered(_unary(method, messages), timeout_s)

    def pull(self, calls: Mapping[int, DataCall], timeout_s: float) -> dict[int, Any]:
        """Like `call` for pulls, over the bulk lane of each server that has one."""
        return self._until_answered(dict(calls), timeout_s)

    def begin_pull(
        self, calls: Mapping[int, DataCall], timeout_s: float, read: ReadReplies[Result]
    ) -> PendingCall[Result]:
        """Send as `pull` does and wait when asked.

        With `max_begun` calls begun and not done, the oldest is waited for first.
        """
        self._wait_for_a_turn()
        call = self._pending(dict(calls), timeout_s, read, None)
        self._begun.add(call)
        call.send()
        return call

    def ask(
        self, index: int, method: MethodOf[Question, Answer], request: Question, timeout_s: float
    ) -> Answer:
        """One server's answer to an idempotent request that no map routes.

        Asked again while the server is away.
        """
        deadline = time.monotonic() + timeout_s

        def attempt() -> Answer:
            routing = self._map.routing()
            request.run_id = routing.run_id
            left_s = max(0.0, deadline - time.monotonic())
            attempt_s = min(ATTEMPT_S, left_s)

            try:
                address = routing.address_of(index)
                with self._links.errors_of(index, address), forking.calls:
                    ask = method(self._links.stub(address))
                    return ask(request, timeout=attempt_s)
            except retry.PASSING:
                left_s = max(0.0, deadline - time.monotonic())
                self._map.refresh(left_s)
                raise

        answer: Answer = retry.until(timeout_s)(attempt)
        return answer

    def status_of(self, index: int, timeout_s: float) -> pb.GetPsStatusResponse:
        """What one server holds; asked again, with a fresh map, while it is away."""
        return self.ask(index, lambda stub: stub.GetPsStatus, pb.GetPsStatusRequest(), timeout_s)

    # --- writes ---

    def write(
        self, requests: Mapping[int, Request], timeout_s: float, read: ReadReplies[Result]
    ) -> PendingCall[Result]:
        """Number the requests and send them; the caller asks for the result at once.

        The write before is waited for first. If its outcome cannot be known, nothing is sent
        (OutcomeUnknown).
        """
        return self._write(dict(requests), timeout_s, read, is_begun=False)

    def begin_write(
        self, requests: Mapping[int, Request], timeout_s: float, read: ReadReplies[Result]
    ) -> PendingCall[Result]:
        """Like `write`, for a caller who asks for the outcome later.

        It counts among the calls begun.
        """
        return self._write(dict(requests), timeout_s, read, is_begun=True)

    def write_unary(
        self,
        method: MethodOf[RequestMessage, Answer],
        messages: Mapping[int, RequestMessage],
        timeout_s: float,
    ) -> dict[int, Answer]:
        """Write by unary calls; replies by ps index."""
        requests = _unary(method, messages)
        replies: PendingCall[dict[int, Answer]] = self.write(requests, timeout_s, dict)
        return replies.result()

    def _write(
        self,
        requests: dict[int, Request],
        timeout_s: float,
        read: ReadReplies[Result],
        *,
        is_begun: bool,
    ) -> PendingCall[Result]:
        with self._write_lock:
            self._wait_for_last_write()
            self._numbers.stamp(requests)
            if is_begun:
                self._wait_for_a_turn()

            call = self._pending(requests, timeout_s, read, self._unknown)
            if is_begun:
                call.leave_unattended()
                self._begun.add(call)

            self._last_write = call
            call.send()

        return call

    def _wait_for_last_write(self) -> None:
        """Before the next one is sent; `_write_lock` is held."""
        if self._last_write is None:
            return

        try:
            self._last_write.wait()
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                f"nothing of this write was sent, because of the one before it: {error}"
            ) from error

        self._say_untold(self._last_write)
        self._last_write = None

    def last_write(self) -> PendingCall[Any] | None:
        """The write sent last, if no other one has waited for it since."""
        with self._write_lock:
            return self._last_write

    @property
    def writes_unknown(self) -> int:
        """Parts of writes of which nobody will know whether they were applied."""
        return self._unknown.count

    def _say_untold(self, call: PendingCall[Any]) -> None:
        """Log the error of a write although nobody asks for its result.

        What such a write would have trained is not trained.
        """
        error = call.take_untold_error()
        if error is None:
            return

        self._failed_unasked += 1
        logger.warning(
            "a write failed before anybody asked for its result: %s "
            "(such writes of this client so far: %d)",
            error,
            self._failed_unasked,
        )

    # --- the end ---

    def close(self, *, wait: bool) -> int:
        """Disconnect, after the outcome of the last write is known if `wait`.

        Everything else that is begun is given up. Returns how many writes that nobody waits for are
        among it: 0 or 1.
        """
        given_up = 0
        if wait:
            self._finish_last_write()
        else:
            given_up = self._give_up_last_write()

        self._begun.abandon_all(_closed())
        self._links.close()
        return given_up

    def _finish_last_write(self) -> None:
        last = self.last_write()
        if last is None:
            return

        try:
            last.wait()
        except OutcomeUnknown as error:
            for index in last.abandon(error):
                self._unknown.add(index, f"the client was closed; {error}")

        self._say_untold(last)

    def _give_up_last_write(self) -> int:
        """Give the last write up, unless somebody waits for it. Nothing is waited for here."""
        # While the lock is held a write is being sent, and its caller hears what becomes of it.
        if not self._write_lock.acquire(blocking=False):
            return 0

        try:
            last = self._last_write
        finally:
            self._write_lock.release()

        if last is None:
            return 0

        self._say_untold(last)
        if not last.is_unattended or last.is_done:
            return 0

        given_up = last.abandon(_closed())
        for index in given_up:
            self._unknown.add(index, "the client was closed without waiting")

        return 1 if given_up else 0

    # --- room ---

    def _until_answered(self, requests: dict[int, Request], timeout_s: float) -> dict[int, Any]:
        deadline = time.monotonic() + timeout_s
        size = self._take_room(requests, timeout_s)
        try:
            left_s = deadline - time.monotonic()
            exchange = Exchange(self._map, self._links, requests, left_s)
            exchange.send()
            return exchange.finish()
        finally:
            self._budget.release(size)

    def _pending(
        self,
        requests: dict[int, Request],
        timeout_s: float,
        read: ReadReplies[Result],
        unknown: UnknownWrites | None,
    ) -> PendingCall[Result]:
        """A call that has room and is still to be sent; with `unknown` it is a write."""
        deadline = time.monotonic() + timeout_s
        size = self._take_room(requests, timeout_s)
        left_s = deadline - time.monotonic()
        exchange = Exchange(self._map, self._links, requests, left_s, unknown)

        def make_room(call: PendingCall[Any]) -> None:
            self._begun.remove(call)
            self._budget.release(size)

        return PendingCall(exchange, read, make_room)

    def _take_room(self, requests: Mapping[int, Request], timeout_s: float) -> int:
        """Hold the bytes of requests, and return how many they are.

        Begun calls that are in the way are waited for.
        """
        size = sum(self._links.checked_size(request) for request in requests.values())
        while not self._budget.has_room(size) and self._begun.wait_for_oldest():
            pass

        self._budget.take(size, timeout_s)
        return size

    def _wait_for_a_turn(self) -> None:
        """Until fewer than `max_begun` calls are begun and not done."""
        while len(self._begun) >= self._max_begun and self._begun.wait_for_oldest():
            pass


def _unary(method: MethodOf[Any, Any], messages: Mapping[int, Any]) -> dict[int, Request]:
    return {index: UnaryRequest(method, message) for index, message in messages.items()}


def _closed() -> InvalidRequest:
    return InvalidRequest(
        "the connection to the cluster was closed before the answer was asked for"
    )
