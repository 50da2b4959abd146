"""Connections to the parameter servers: a channel each, and a bulk lane where there is one."""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from megalith.client._transport.requests import CallOnItsWay, DataCall, Request, Stub, UnaryCall
from megalith.errors import InvalidRequest, MessageTooLarge, PeerUnreachable
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import channel, forking, frames
from megalith.wire.lane import Lane, LaneClosed, LaneFull
from megalith.wire.status import translated

logger = logging.getLogger(__name__)


class Links:
    """Channels and lanes by address, opened at the first use.

    `_lock` guards the channels, the lanes and `_is_closed`.
    """

    def __init__(self, max_message_bytes: int, *, use_lane: bool = True) -> None:
        self._max_message_bytes = max_message_bytes
        self._use_lane = use_lane

        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        # None: this server has no lane that can be reached.
        self._lanes: dict[str, Lane | None] = {}
        self._is_closed = False
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """A forked child keeps the terms of the lanes, and opens channels of its own."""
        self._lock = threading.Lock()
        self._channels = {}

    def start(self, address: str, request: Request, deadline: float) -> CallOnItsWay:
        """Send a request; pulls and pushes over the bulk lane, if the server has one.

        `deadline` is on the monotonic clock.
        """
        if isinstance(request, DataCall):
            return self._start_data(address, request, deadline)

        send = request.method(self.stub(address)).future
        return self._start_unary(address, send, request.message, deadline, None)

    def _start_data(self, address: str, call: DataCall, deadline: float) -> CallOnItsWay:
        lane = self._lane(address, call.message.run_id, deadline)
        if lane is not None and call.message.ByteSize() <= frames.MAX_HEAD_BYTES:
            try:
                return lane.start(call, deadline)
            except LaneFull as error:
                logger.debug("%s; a call to %s is unary", error, address)
            except LaneClosed as error:
                logger.warning("%s; calls to %s are unary", error, address)
                self._set_lane(address, None)

        stub = self.stub(address)
        message = call.whole_message()
        method: Any = stub.Pull if isinstance(message, pb.PullRequest) else stub.Push
        send = method.future

        return self._start_unary(address, send, message, deadline, call)

    def _start_unary(
        self, address: str, send: Any, message: Any, deadline: float, data: DataCall | None
    ) -> UnaryCall:
        timeout_s = max(0.0, deadline - time.monotonic())
        future = forking.calls.follow(lambda: send(message, timeout=timeout_s))
        return UnaryCall(future, address, data)

    def stub(self, address: str) -> Stub:
        with self._lock:
            self._check_open()
            if address not in self._channels:
                self._channels[address] = channel.open_channel(address, self._max_message_bytes)

            return Stub(self._channels[address])

    @contextmanager
    def errors_of(self, index: int, address: str) -> Iterator[None]:
        """Inside, errors are MegalithErrors that name the server.

        A server that was not reached loses its lane.
        """
        try:
            with translated(f"ps-{index} at {address}"):
                yield
        except PeerUnreachable:
            self._forget_lane(address)
            raise

    def checked_size(self, request: Request) -> int:
        """The bytes of a request; MessageTooLarge above the limit of this client."""
        size = request.nbytes
        if size > self._max_message_bytes:
            raise MessageTooLarge(
                f"a request of {size} bytes is above the limit of {self._max_message_bytes}; "
                "send fewer ids per call, "
                "or raise max_message_bytes here and --max-message-bytes on the servers"
            )

        return size

    def keep_only(self, addresses: Collection[str]) -> None:
        """Disconnect from all other servers."""
        with self._lock:
            gone = set(self._channels).difference(addresses)
            channels = [self._channels.pop(address) for address in gone]
            lanes = [self._lanes.pop(address, None) for address in gone]

        _close(channels, lanes)

    def check_open(self) -> None:
        """A call that outlives the client opens nothing more: InvalidRequest."""
        with self._lock:
            self._check_open()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            channels = list(self._channels.values())
            lanes = list(self._lanes.values())
            self._channels.clear()
            self._lanes.clear()

        _close(channels, lanes)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequest("the connection to the cluster is closed")

    def _lane(self, address: str, run_id: str, deadline: float) -> Lane | None:
        """The lane of a server; asks for it at the first call, and after a failure."""
        if not self._use_lane:
            return None

        with self._lock:
            if address in self._lanes:
                return self._lanes[address]

        negotiate = self.stub(address).Negotiate
        request = pb.NegotiateRequest(run_id=run_id)
        with forking.calls:
            terms = negotiate(request, timeout=max(0.0, deadline - time.monotonic()))

        lane = Lane(address, terms) if terms.lane_port else None
        return self._set_lane(address, lane)

    def _set_lane(self, address: str, lane: Lane | None) -> Lane | None:
        with self._lock:
            self._check_open()
            before = self._lanes.get(address)
            self._lanes[address] = lane

        _close((), [before])
        return lane

    def _forget_lane(self, address: str) -> None:
        """Negotiate again at the next call: its server was not reached."""
        with self._lock:
            lane = self._lanes.pop(address, None)

        _close((), [lane])


def _close(channels: Iterable[grpc.Channel], lanes: Iterable[Lane | None]) -> None:
    for open_channel in channels:
        open_channel.close()

    for lane in lanes:
        if lane is not None:
            lane.close()
