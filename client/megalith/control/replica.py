"""Driving one serving replica: staying with a version, and going back to one."""

from dataclasses import dataclass
from typing import Any

from megalith.protos import replica_pb2, replica_pb2_grpc
from megalith.wire import channel
from megalith.wire.status import translated


@dataclass(frozen=True, slots=True)
class ReplicaVersion:
    """What a replica serves: the version of each ps, or the checkpoint that it was rolled back to.

    It had everything for the last time `staleness_s` ago.
    """

    is_pinned: bool
    checkpoint: str
    versions: tuple[int, ...]
    staleness_s: float


class ReplicaControl:
    """Calls to the replica at an address; each has `timeout_s` to answer."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._channel = channel.open_channel(address)
        self._stub = replica_pb2_grpc.ReplicaStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def pin(self) -> ReplicaVersion:
        """Stay with what it has.

        NotReady before it has had everything, and while a ps sends it all rows again.
        """
        return self._ask(self._stub.Pin, replica_pb2.PinRequest())

    def unpin(self) -> ReplicaVersion:
        """Follow the job again; nothing happens if it does."""
        return self._ask(self._stub.Unpin, replica_pb2.UnpinRequest())

    def roll_back(self, checkpoint: str) -> ReplicaVersion:
        """Serve a checkpoint of the job, by name, path or URL, until it is unpinned.

        CheckpointNotFound or CheckpointDamaged change nothing. It answers once the checkpoint is
        loaded; whoever does not wait so long finds the outcome in the status of the job.
        """
        return self._ask(self._stub.RollBack, replica_pb2.RollBackRequest(checkpoint=checkpoint))

    def _ask(self, call: Any, request: Any) -> ReplicaVersion:
        with translated(f"replica {self._address}"):
            freshness = call(request, timeout=self._timeout_s).freshness

        return ReplicaVersion(
            freshness.is_pinned,
            freshness.checkpoint,
            tuple(freshness.versions),
            freshness.staleness_us / 1e6,
        )
