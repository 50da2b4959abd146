"""A thread for each ps, which opens the stream, and opens it again when it breaks."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grpc

from megalith.errors import MegalithError
from megalith.protos import replication_pb2 as pb
from megalith.protos import replication_pb2_grpc
from megalith.replica.copies.ps_copy import PsCopy
from megalith.wire import channel
from megalith.wire.status import error_from_rpc

logger = logging.getLogger(__name__)

_AGAIN_S = 0.5  # between two tries to open a stream


class PsProcess(NamedTuple):
    """A ps of the map of a run: the replacement of a ps is another process."""

    run_id: str
    address: str
    instance: str


class _Requests:
    """The messages that go up a stream; an iterator that `close` ends."""

    def __init__(self, begin: pb.FollowBegin) -> None:
        self._queue: queue.SimpleQueue[pb.FollowRequest | None] = queue.SimpleQueue()
        first = pb.FollowRequest(begin=begin)
        self._queue.put(first)

    def acknowledge(self, number: int, is_controller_away: bool) -> None:
        acknowledged = pb.AcknowledgeVersion(number=number, is_controller_away=is_controller_away)
        self._queue.put(pb.FollowRequest(acknowledged=acknowledged))

    def close(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[pb.FollowRequest]:
        while (message := self._queue.get()) is not None:
            yield message


class Following:
    """Follows one ps at one address until it is stopped.

    `_lock` guards the call that is open.
    """

    def __init__(
        self,
        copy: PsCopy,
        process: PsProcess,
        begin: pb.FollowBegin,
        max_message_bytes: int,
        is_controller_away: Callable[[], bool],
    ) -> None:
        """`begin` is what every stream begins with, but for the cursor and for the controller."""
        self.copy = copy
        self.process = process
        self._begin = begin
        self._max_message_bytes = max_message_bytes
        self._is_controller_away = is_controller_away
        self._lock = threading.Lock()
        self._call: grpc.Call | None = None
        self._stopping = threading.Event()

        self.is_connected = False
        self.complaint = "not connected yet"
        self._failure = ""  # the last error that nobody foresaw

        name = f"follow-ps-{copy.index}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the stream. What was applied stays, and the cursor of the copy says how much."""
        self._stopping.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()

        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with channel.open_channel(self.process.address, self._max_message_bytes) as opened:
            stub = replication_pb2_grpc.ReplicationStub(opened)
            while not self._stopping.is_set():
                try:
                    self._follow(stub)
                    complaint = f"ps-{self.copy.index} ended the stream"
                except grpc.RpcError as error:
                    complaint = str(error_from_rpc(error, f"ps-{self.copy.index}"))
                except MegalithError as error:
                    complaint = str(error)
                except Exception as error:
                    complaint = repr(error)
                    if complaint != self._failure:  # a lasting one is said once
                        logger.exception("following ps-%d failed", self.copy.index)
                        self._failure = complaint

                self._say(complaint)
                self._stopping.wait(_AGAIN_S)

    def _say(self, complaint: str) -> None:
        self.is_connected = False
        if complaint != self.complaint and not self._stopping.is_set():
            logger.warning("ps-%d is not followed, trying again: %s", self.copy.index, complaint)

        self.complaint = complaint

    def _follow(self, stub: replication_pb2_grpc.ReplicationStub) -> None:
        begin = pb.FollowBegin()
        begin.CopyFrom(self._begin)
        begin.cursor.CopyFrom(self.copy.cursor)
        begin.is_controller_away = self._is_controller_away()
        requests = _Requests(begin)
        self.copy.speaks()
        call = stub.Follow(iter(requests))
        with self._lock:
            self._call = call

        try:
            if self._stopping.is_set():
                call.cancel()

            for message in call:
                self._take(message, requests)
        finally:
            requests.close()
            call.cancel()

    def _take(self, message: pb.FollowResponse, requests: _Requests) -> None:
        if message.HasField("hello"):
            self.copy.begin(message.hello)
            return

        if self.copy.apply(message):
            self.is_connected = True
            self.complaint = ""
            self.copy.speaks()
            requests.acknowledge(message.version.number, self._is_controller_away())
