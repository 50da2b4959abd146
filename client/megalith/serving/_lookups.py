"""The way to one replica: its bulk lane, or unary calls where there is none. And lookups on it."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from megalith.errors import MalformedArray, PeerUnreachable
from megalith.protos import parameter_server_pb2 as lane_pb
from megalith.protos import replica_pb2 as pb
from megalith.protos import replica_pb2_grpc
from megalith.serving._answers import F32
from megalith.wire import arrays, frames
from megalith.wire.lane import Lane, LaneClosed, LaneData, LaneFull, LaneTerms
from megalith.wire.status import translated

logger = logging.getLogger(__name__)

TableIds = dict[str, NDArray[np.int64]]

_ASK_AGAIN_S = 5.0  # for a lane, where there was none


class Lookup:
    """One lookup of several tables, whose ids and rows travel behind its message."""

    def __init__(self, ids: TableIds, max_staleness_us: int) -> None:
        self._ids = ids
        self._request = pb.LookupRequest(max_staleness_us=max_staleness_us)
        for table in ids:
            self._request.tables.add(table=table)

        self._rows: dict[int, F32] = {}  # by number of the table
        self._dims: list[int] = []

    def rows(self) -> dict[str, F32]:
        """[ids, dim] by table, after the answer has come."""
        self.check_received(len(self._dims))
        found = {}
        for number, (table, ids) in enumerate(self._ids.items()):
            flat = self._rows[number]
            shape = (ids.size, self._dims[number])
            if flat.size != math.prod(shape):
                raise MalformedArray(f"table {table}: {flat.size} numbers came as rows {shape}")

            found[table] = flat.reshape(shape)

        return found

    # --- as a call of the lane ---

    @property
    def head_bytes(self) -> int:
        return self._request.ByteSize()

    @property
    def nbytes(self) -> int:
        size = self.head_bytes
        for ids in self._ids.values():
            size += ids.nbytes

        return size

    def lane_request(self) -> lane_pb.LaneRequest:
        return lane_pb.LaneRequest(lookup=self._request)

    def body(self) -> list[memoryview]:
        return [frames.as_bytes(ids) for ids in self._ids.values()]

    def check_received(self, count: int) -> None:
        if count != len(self._ids):
            raise MalformedArray(f"the reply has {count} arrays, {len(self._ids)} were asked for")

    def sink(self, number: int, nbytes: int, /) -> memoryview:
        count, rest = divmod(nbytes, arrays.VALUE.itemsize)
        if rest:
            raise MalformedArray(f"rows of {nbytes} bytes are no float32 numbers")

        rows = np.empty(count, np.float32)
        self._rows[number] = rows
        return frames.as_bytes(rows)

    def lane_answer(self, reply: lane_pb.LaneReply) -> pb.Freshness:
        self._dims = list(reply.lookup.dims)
        return reply.lookup.freshness

    # --- as a unary call ---

    def message(self) -> pb.LookupRequest:
        request = pb.LookupRequest(max_staleness_us=self._request.max_staleness_us)
        for table, ids in self._ids.items():
            request.tables.add(table=table, ids=arrays.encode(ids))

        return request

    def take(self, reply: pb.LookupResponse) -> pb.Freshness:
        self.check_received(len(reply.rows))
        for number, data in enumerate(reply.rows):
            self._rows[number] = np.frombuffer(data, arrays.VALUE)

        self._dims = list(reply.dims)
        return reply.freshness


class LaneOrUnary(LaneData, Protocol):
    """A call that may go either way."""

    @property
    def head_bytes(self) -> int:
        """Of the message on the lane; too large a one goes by a unary call."""

    def message(self) -> Any:
        """The request of the unary call."""

    def take(self, reply: Any) -> Any:
        """What `lane_answer` would give, of the reply to the unary call."""


class LookupLink:
    """The way to one replica. Thread-safe: `_lock` guards the lane, and what is known of it.

    Where the lane is, the replica is asked at the first call, and again when it was not reached.
    While there is no lane it is asked from time to time, because another process may have come to
    the address, with a lane of its own.
    """

    def __init__(
        self,
        address: str,
        stub: replica_pb2_grpc.ReplicaStub,
        open_lane: Callable[[str, LaneTerms, str], Lane] = Lane,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._stub = stub
        self._open_lane = open_lane
        self._clock = clock
        self._lock = threading.Lock()
        self._lane: Lane | None = None
        self._ask_at_s = -math.inf  # while there is no lane
        self._unreached: bytes | None = None  # token of a lane that took no connections
        self._is_closed = False

    def close(self) -> None:
        with self._lock:
            lane = self._lane
            self._lane = None
            self._is_closed = True

        if lane is not None:
            lane.close()

    def ask(self, call: LaneOrUnary, unary: Callable[..., Any], timeout_s: float) -> Any:
        """The answer; `unary` is the call without a lane. Rows of a lookup are in the call then."""
        deadline = time.monotonic() + timeout_s
        lane = self._open(timeout_s)
        try:
            if lane is not None and call.head_bytes <= frames.MAX_HEAD_BYTES:
                try:
                    return lane.start(call, deadline).finish(deadline)
                except LaneFull as error:
                    logger.debug("%s; a call at %s is unary", error, self._address)
                except LaneClosed as error:
                    logger.warning("%s; calls at %s are unary", error, self._address)
                    self._do_without(lane)
                    lane = None

            left_s = max(0.0, deadline - time.monotonic())
            with translated(f"replica {self._address}"):
                reply = unary(call.message(), timeout=left_s)
        except PeerUnreachable:
            self._forget(lane)
            raise

        return call.take(reply)

    def _open(self, timeout_s: float) -> Lane | None:
        with self._lock:
            is_to_be_asked = self._lane is None and self._clock() >= self._ask_at_s
            if self._is_closed or not is_to_be_asked:
                return self._lane

        terms = self._stub.OpenLane(pb.OpenLaneRequest(), timeout=timeout_s)
        return self._use(terms)

    def _use(self, terms: pb.OpenLaneResponse) -> Lane | None:
        """The lane of these terms, or that of another thread which has opened one meanwhile."""
        with self._lock:
            if self._lane is not None or self._is_closed:
                return self._lane

            self._ask_at_s = self._clock() + _ASK_AGAIN_S
            # To try one again that a firewall drops would take the time of this call
            if terms.lane_port and terms.lane_token != self._unreached:
                self._lane = self._open_lane(self._address, terms, "replica")

            return self._lane

    def _do_without(self, lane: Lane) -> None:
        """It takes no connections: calls are unary until another process offers a lane."""
        with self._lock:
            if self._lane is lane:
                self._lane = None
                self._ask_at_s = self._clock() + _ASK_AGAIN_S
                self._unreached = lane.token

        lane.close()

    def _forget(self, lane: Lane | None) -> None:
        """Ask again at the next call: the replica was not reached, by its lane or without one."""
        with self._lock:
            if self._lane is lane:
                self._lane = None
                self._ask_at_s = -math.inf
                self._unreached = None

        if lane is not None:
            lane.close()
