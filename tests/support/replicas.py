"""Looking at a serving replica as its clients do."""

import weakref

import grpc
import numpy as np

import megalith.serving as serving
from megalith.protos import replica_pb2, replica_pb2_grpc
from megalith.wire.status import translated
from support.waiting import wait_until


class ReplicaReader:
    """A client of one replica."""

    def __init__(self, address):
        self._client = serving.connect(replicas=[address], timeout_s=10)
        self._channel = grpc.insecure_channel(address)
        self._stub = replica_pb2_grpc.ReplicaStub(self._channel)
        weakref.finalize(self, self._client.close)

    def lookup(self, table, ids, max_staleness_s=0.0):
        return self._client.lookup({table: ids}, max_staleness_s=max_staleness_s).rows[table]

    def variables(self, *names):
        return list(self._client.variables(names).values())

    def status(self):
        return self._stub.GetReplicaStatus(
            replica_pb2.GetReplicaStatusRequest(), timeout=10, wait_for_ready=True
        )

    def freshness(self):
        return self._client.lookup({}).freshness

    def pin(self):
        return self._asked(self._stub.Pin, replica_pb2.PinRequest())

    def unpin(self):
        return self._asked(self._stub.Unpin, replica_pb2.UnpinRequest())

    def roll_back(self, checkpoint):
        request = replica_pb2.RollBackRequest(checkpoint=checkpoint)
        return self._asked(self._stub.RollBack, request)

    def _asked(self, call, request):
        with translated("replica"):
            return call(request, timeout=60).freshness

    def lookup_once(self, table, ids, max_staleness_s=0.0):
        """Without trying again."""
        ids = np.asarray(ids, np.int64)
        part = replica_pb2.ServedIds(table=table, ids=ids.tobytes())
        limit_us = int(max_staleness_s * 1e6)
        request = replica_pb2.LookupRequest(tables=[part], max_staleness_us=limit_us)
        with translated("replica"):
            return self._stub.Lookup(request, timeout=60)

    def wait_ready(self):
        wait_until(lambda: self.status().is_ready)

    def wait_for_a_version(self):
        """Until everything that was acknowledged before this call is visible.

        The version that is under way may have been sealed before the call; the one after it was
        not. A stream that breaks meanwhile counts from 1 again.
        """
        before = {ps.index: (ps.version, ps.address) for ps in self.status().ps}

        def is_newer(ps):
            version, address = before.get(ps.index, (0, ""))
            if ps.address != address or ps.version < version:
                before[ps.index] = (0, ps.address)
                return False
            return ps.is_connected and ps.version >= version + 2

        wait_until(lambda: all([is_newer(ps) for ps in self.status().ps]))

    def close(self):
        self._client.close()
        self._channel.close()


def assert_serves(reader, cluster, table, ids, tolerance=0.0):
    """The replica has the rows that the cluster has."""
    ids = np.asarray(ids)
    trained = cluster.pull({table: ids}).rows[table]
    np.testing.assert_allclose(reader.lookup(table, ids), trained, atol=tolerance, rtol=0)
