"""Lookups over the bulk lane of a replica, and by unary calls where there is none."""

import threading
import time
import urllib.request

import numpy as np
import pytest

import megalith.serving as serving
from megalith.client import Adagrad, RandomUniform, Segment, TableConfig
from megalith.errors import InvalidRequest, PeerUnreachable, UnknownTable
from megalith.protos import parameter_server_pb2 as lane_pb
from megalith.protos import replica_pb2, replica_pb2_grpc
from megalith.replica.config import ReplicaConfig
from megalith.replica.server import ReplicaServer
from megalith.runtime.rpc.server import ServerSettings
from megalith.serving._replica_pool import KnownReplica
from megalith.wire import channel, frames
from megalith.wire.lane import Lane
from support.replicas import ReplicaReader
from support.servers import Servers
from support.waiting import wait_until

IDS = np.arange(3000)


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        servers.start_ps(0, delta_every_s=0.05)
        cluster = servers.connect()
        for name, dim in (("narrow", 1), ("wide", 16)):
            segment = Segment(dim, RandomUniform(-0.5, 0.5), Adagrad(0.1))
            cluster.create_tables(TableConfig(name, (segment,)))
            cluster.push({name: (IDS, np.ones((IDS.size, dim), np.float32))})
        yield servers


def ready(servers, index, **settings):
    server = servers.start_replica(index, **settings)
    reader = ReplicaReader(server.address)
    reader.wait_ready()
    reader.close()
    return server


def calls(server):
    """Lookups by lane and by unary calls that the replica counted."""
    page = urllib.request.urlopen(f"http://{server._rpc.metrics_address}/metrics").read().decode()
    counts = {"lane/lookup": 0, "/megalith.v1.Replica/Lookup": 0}
    for line in page.splitlines():
        for method in counts:
            if line.startswith("megalith_rpc_total{") and f'"{method}"' in line:
                counts[method] += int(float(line.rpartition(" ")[2]))
    return tuple(counts.values())


def test_both_ways_give_the_same_rows_and_freshness(servers):
    by_lane = ready(servers, 0)
    by_calls = ready(servers, 1, bulk_lane=False)
    wanted = {"wide": IDS[::-1], "narrow": np.array([5, 5, 10**9])}
    with (
        serving.connect(replicas=[by_lane.address], timeout_s=30) as first,
        serving.connect(replicas=[by_calls.address], timeout_s=30) as second,
    ):
        lane = first.lookup(wanted)
        unary = second.lookup(wanted)
        with pytest.raises(UnknownTable, match="no table 'nope'"):
            first.lookup({"nope": [1]})
        for client in (first, second):
            rows = client.lookup({"wide": [], "narrow": []}).rows
            assert (rows["wide"].shape, rows["narrow"].shape) == ((0, 16), (0, 1))

    trained = servers.connect().pull(wanted).rows
    for table, rows in trained.items():
        np.testing.assert_array_equal(lane.rows[table], rows)
        np.testing.assert_array_equal(unary.rows[table], rows)
    assert lane.freshness.run_id == unary.freshness.run_id
    assert calls(by_lane) == (3, 0)
    assert calls(by_calls) == (0, 2)


@pytest.mark.parametrize("hedge_after_s", [0.0, 0.01])
def test_a_client_that_was_closed_asks_nobody_and_leaves_no_thread(servers, hedge_after_s):
    server = ready(servers, 0)
    before = set(threading.enumerate())
    addresses = [server.address, "127.0.0.1:1"]  # nobody is at the second one
    client = serving.connect(replicas=addresses, timeout_s=30, hedge_after_s=hedge_after_s)
    client.lookup({"wide": IDS})
    client.close()
    counted = calls(server)
    asks = (client.lookup, client.features, client.predict, lambda _: client.variables([]))
    for ask in asks:
        with pytest.raises(InvalidRequest, match="the connection to the replicas is closed"):
            ask({})
    assert calls(server) == counted
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_a_client_finds_the_lane_of_a_replica_that_was_restarted(servers):
    server = ready(servers, 0)
    host, _, port = server.address.rpartition(":")
    with serving.connect(replicas=[server.address], timeout_s=30) as client:
        before = client.lookup({"wide": IDS}).rows["wide"]
        servers.stop("replica-0")
        config = ReplicaConfig(
            index=0,
            membership=servers.membership(),
            server=ServerSettings(host=host, port=int(port)),
        )
        again = servers.start("replica-0", lambda request: ReplicaServer(config, request))
        np.testing.assert_array_equal(client.lookup({"wide": IDS}).rows["wide"], before)
        client.lookup({"wide": IDS})
    assert calls(again)[0] >= 2


def test_a_lane_that_closed_as_its_replica_died_is_found_again(servers):
    server = ready(servers, 0)
    host, _, port = server.address.rpartition(":")
    with serving.connect(replicas=[server.address], timeout_s=1) as client:
        before = client.lookup({"wide": IDS}).rows["wide"]
        servers.stop("replica-0")
        lane = client._replicas.link(KnownReplica(server.address)).lookups._lane
        lane._take_idle().close()  # as for a thread that has no connection yet
        with pytest.raises(PeerUnreachable):
            client.lookup({"wide": IDS})

        config = ReplicaConfig(
            index=0,
            membership=servers.membership(),
            server=ServerSettings(host=host, port=int(port)),
        )
        again = servers.start("replica-0", lambda request: ReplicaServer(config, request))
        reader = ReplicaReader(again.address)
        reader.wait_ready()
        reader.close()
        np.testing.assert_array_equal(client.lookup({"wide": IDS}).rows["wide"], before)
    assert calls(again) == (1, 0)


class _Push:
    """What no replica takes."""

    nbytes = 10

    def lane_request(self):
        return lane_pb.LaneRequest(push=lane_pb.PushRequest())

    def body(self):
        return [frames.as_bytes(IDS[:0])]


def test_a_replica_takes_no_pushes_and_no_strangers(servers):
    server = ready(servers, 0)
    with channel.open_channel(server.address, 1 << 20) as opened:
        stub = replica_pb2_grpc.ReplicaStub(opened)
        terms = stub.OpenLane(replica_pb2.OpenLaneRequest(), timeout=10)

    lane = Lane(server.address, terms, "replica")
    deadline = time.monotonic() + 60
    with pytest.raises(InvalidRequest, match="lookups only"):
        lane.start(_Push(), deadline).finish(deadline)
    lane.close()

    terms.lane_token = b"guessed"
    stranger = Lane(server.address, terms, "replica")
    with pytest.raises(PeerUnreachable, match="token"):
        stranger.start(_Push(), deadline)
    stranger.close()
