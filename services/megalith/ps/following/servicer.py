"""gRPC face of following: versions become messages."""

import logging
import secrets
import time
from collections.abc import Iterator

import grpc
import numpy as np

from megalith.errors import InvalidRequest
from megalith.kernels.dtypes import Bools
from megalith.protos import replication_pb2 as pb
from megalith.protos import replication_pb2_grpc
from megalith.ps.following.follower import Follower
from megalith.ps.following.followers import Followers
from megalith.ps.following.sealing import SealingClock
from megalith.ps.following.shared_changes import SharedChanges
from megalith.ps.following.shared_variables import SharedVariables
from megalith.ps.following.versions import (
    Cursor,
    Dropped,
    Event,
    RowsChanged,
    Sets,
    SnapshotEnds,
    TableBegins,
    VariablesChanged,
    VersionEnds,
)
from megalith.ps.store.known_saves import KnownSaves
from megalith.ps.store.store import Store
from megalith.wire import arrays, codec
from megalith.wire.routing import share_of_buckets

logger = logging.getLogger(__name__)

_TIME = np.dtype("<u4")
_LONGEST_NAME = 128


class ReplicationServicer(replication_pb2_grpc.ReplicationServicer):
    """Streams to replicas. A thread of the server is theirs while they follow."""

    def __init__(
        self,
        index: int,
        store: Store,
        known_saves: KnownSaves,
        every_s: float,
        dense_every_s: float,
        memory_s: float,
        max_replicas: int,
        max_message_bytes: int,
    ) -> None:
        self._index = index
        self._store = store
        self._known_saves = known_saves
        self._max_message_bytes = max_message_bytes

        self._log_id = secrets.token_hex(8)
        self._shared = SharedChanges()
        self._variables = SharedVariables(dense_every_s)

        self._followers = Followers(max_replicas, memory_s)
        self._clock = SealingClock(store.tables, self._followers.is_anybody_there, every_s)

    @property
    def log_id(self) -> str:
        """Names the delta logs of this process, which end with it."""
        return self._log_id

    def start(self) -> None:
        self._clock.start()

    def stop(self) -> None:
        """End all streams."""
        self._clock.stop()

    def Follow(
        self, request_iterator: Iterator[pb.FollowRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.FollowResponse]:
        begin = _begin_of(request_iterator)
        self._store.check_run(begin.run_id)
        # A map may come and go: without one, a snapshot would drop the rows of all other ps there
        buckets = self._store.mapped_buckets()
        share = share_of_buckets(begin.share_index, begin.share_count)
        saved = self._sets_of_save(begin.cursor)
        cursor = Cursor(begin.cursor.log_id, dict(begin.cursor.sets))
        if saved is not None:
            cursor = Cursor(self._log_id, saved)

        follower = Follower(
            self._store,
            self._shared,
            self._variables,
            begin.replica,
            cursor,
            self._log_id,
            share,
            self._max_message_bytes,
        )
        seat = self._followers.enter(begin.replica, follower)
        heard_s = time.monotonic()
        is_controller_away = begin.is_controller_away
        count = self._clock.count
        self._clock.wake()
        try:
            yield self._hello(buckets, goes_on_from_save=saved is not None)
            while True:
                count, sealed_s = self._clock.wait_after(count)
                if self._clock.is_stopping:
                    return

                self._followers.check_held(begin.replica, seat)
                for event in follower.version(sealed_s):
                    if isinstance(event, VersionEnds):
                        self._store.check_seat(is_controller_away)

                    yield _message(event, heard_s)

                acknowledged = _acknowledged(request_iterator, follower.number)
                if acknowledged is None:
                    return

                is_controller_away = acknowledged.is_controller_away
                heard_s = time.monotonic()
                follower.acknowledge()
        finally:
            self._followers.leave(begin.replica, seat)

    def _sets_of_save(self, cursor: pb.ReplicaCursor) -> Sets | None:
        """Up to where the replica has everything because it has loaded a save; None = it has not.

        On top of the rows of a save may be changes of another process, which went back behind them.
        """
        is_untouched = cursor.log_id in ("", self._log_id)
        if not cursor.save_id or not is_untouched:
            return None

        return self._known_saves.sets_of(cursor.save_id)

    def _hello(self, buckets: Bools, *, goes_on_from_save: bool) -> pb.FollowResponse:
        hello = pb.FollowHello(
            log_id=self._log_id,
            index=self._index,
            epoch=self._store.epoch,
            buckets=arrays.encode(buckets.astype(np.uint8)),
            goes_on_from_save=goes_on_from_save,
        )
        return pb.FollowResponse(hello=hello)


def _begin_of(requests: Iterator[pb.FollowRequest]) -> pb.FollowBegin:
    first = next(requests, None)
    if first is None or not first.HasField("begin"):
        raise InvalidRequest("the first message of Follow must be `begin`")
    if not 0 < len(first.begin.replica) <= _LONGEST_NAME:
        raise InvalidRequest(f"Follow: a replica's name has 1 to {_LONGEST_NAME} characters")

    return first.begin


def _acknowledged(
    requests: Iterator[pb.FollowRequest], number: int
) -> pb.AcknowledgeVersion | None:
    """Wait for the word of the replica; None if it has gone."""
    try:
        answer = next(requests, None)
    except grpc.RpcError:  # the stream broke
        return None

    if answer is None:
        return None

    if not answer.HasField("acknowledged") or answer.acknowledged.number != number:
        raise InvalidRequest(f"Follow: version {number} was sent, and is to be acknowledged")

    return answer.acknowledged


def _message(event: Event, heard_s: float) -> pb.FollowResponse:
    """`heard_s` is when the replica was heard for the last time, on the monotonic clock."""
    match event:
        case TableBegins(config, is_snapshot):
            table = pb.TableBegin(config=codec.table_to_proto(config), is_snapshot=is_snapshot)
            return pb.FollowResponse(table=table)

        case RowsChanged(name, ids, compressed, times):
            rows = pb.TableRows(
                table=name,
                ids=arrays.encode(ids),
                rows=arrays.encode(compressed),
                times=arrays.encode(times.astype(_TIME)),
            )
            return pb.FollowResponse(rows=rows)

        case Dropped(name, ids):
            dropped = pb.DroppedIds(table=name, ids=arrays.encode(ids))
            return pb.FollowResponse(dropped=dropped)

        case SnapshotEnds(name, count):
            return pb.FollowResponse(snapshot_end=pb.SnapshotEnd(table=name, rows=count))

        case VariablesChanged(values):
            named = [
                pb.NamedArray(name=name, value=codec.array_to_proto(value))
                for name, value in values.items()
            ]
            return pb.FollowResponse(variables=pb.VariableValues(variables=named))

        case VersionEnds():
            return pb.FollowResponse(version=_version(event, heard_s))


def _version(event: VersionEnds, heard_s: float) -> pb.VersionEnd:
    now_s = time.monotonic()
    ages_us = {}
    for table, noted_s in event.oldest_s.items():
        ages_us[table] = _microseconds(now_s - noted_s)

    return pb.VersionEnd(
        number=event.number,
        sets=dict(event.sets),
        sealed_us=_microseconds(now_s - event.sealed_s),
        sealed_after_us=_microseconds(event.sealed_s - heard_s),
        ages_us=ages_us,
        oldest_events_s=event.oldest_events_s,
        newest_data_s=event.newest_data_s,
        variables=event.variables,
        num_sent=event.num_sent,
    )


def _microseconds(seconds: float) -> int:
    return int(seconds * 1e6)
