"""Jobs that change under their replicas: other settings, other ps, other jobs, other replicas."""

import socket

import grpc
import numpy as np
import pytest

import megalith.serving as serving
from megalith.client import FixedR8, RandomUniform, Segment, Sgd, TableConfig, VariableConfig
from megalith.errors import IndexTaken, InvalidRequest, MegalithError, UnknownTable, WrongRun
from megalith.protos import replica_pb2, replica_pb2_grpc, replication_pb2, replication_pb2_grpc
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.rpc.server import ServerSettings
from megalith.wire.status import translated
from support.replicas import ReplicaReader, assert_serves
from support.servers import Servers
from support.waiting import wait_until

DIM = 4


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index, delta_every_s=0.05)
        yield servers


def table_of(name="t", dim=DIM, compressor=None):
    more = {} if compressor is None else {"compressor": compressor}
    return TableConfig(name, (Segment(dim, RandomUniform(-0.5, 0.5), Sgd(0.1), **more),))


def push(cluster, ids, table="t", dim=DIM):
    ids = np.asarray(ids, np.int64)
    cluster.push({table: (ids, np.ones((ids.size, dim), np.float32))})


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_a_second_replica_gets_300000_rows_once_while_others_follow_and_rows_change(servers, order):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.random.default_rng(7).choice(2**40, 300_000, replace=False)
    if order == "sorted":
        ids = np.sort(ids)
    for begin in range(0, ids.size, 50_000):
        push(cluster, ids[begin : begin + 50_000])
    ReplicaReader(servers.start_replica(0).address).wait_ready()
    late = ReplicaReader(servers.start_replica(1).address)
    while not late.status().is_ready:
        push(cluster, ids[:1000])
    late.wait_for_a_version()
    assert_serves(late, cluster, "t", ids)
    assert [ps.snapshots for ps in late.status().ps] == [1, 1]


def test_another_compressor_of_equally_many_bytes_is_served_right(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of(compressor=FixedR8(1.0)))
    ids = np.arange(2000)
    push(cluster, ids)
    reader = ReplicaReader(servers.start_replica(0).address)
    reader.wait_ready()
    cluster.create_tables(table_of(compressor=FixedR8(4.0)))
    wait_until(lambda: all(ps.snapshots == 2 for ps in reader.status().ps))
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", ids, tolerance=4 / 128)


def test_rows_of_2048_numbers_and_variables_above_a_message_arrive(tmp_path):
    server = ServerSettings(max_message_bytes=1 << 20)
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        servers.start_ps(0, server=server, delta_every_s=0.05)
        cluster = servers.connect(max_message_bytes=1 << 20)
        cluster.create_tables(table_of(dim=2048))
        for number in range(8):
            value = np.full(50_000, number, np.float32)
            cluster.create_variables(VariableConfig(f"v{number}", value, Sgd(0.1)))
        for begin in range(0, 500, 50):
            push(cluster, np.arange(begin, begin + 50), dim=2048)
        replica = servers.start_replica(0, server=server)
        reader = ReplicaReader(replica.address)
        reader.wait_ready()
        assert reader.status().rows == 500
        assert_serves(reader, cluster, "t", np.arange(0, 500, 50))
        assert reader.variables("v7")[0].tolist() == [7.0] * 50_000


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (2, 2)])
def test_a_job_that_comes_back_with_another_number_of_ps(tmp_path, before, after):
    """The replica lives on, and in the end it has what the new job has, and no more."""
    large = np.arange(300_000, dtype=np.float32).reshape(3000, 100)
    ids = np.random.default_rng(5).choice(2**40, 20_000, replace=False)
    with Servers(tmp_path, num_ps=before) as servers:
        started = [servers.start_controller()]
        started += [servers.start_ps(index, delta_every_s=0.05) for index in range(before)]
        cluster = servers.connect()
        cluster.create_tables(table_of(), table_of("gone"))
        cluster.create_variables(VariableConfig("large", large, Sgd(0.1)))
        push(cluster, ids)
        push(cluster, ids[:100], "gone")
        reader = ReplicaReader(servers.start_replica(0).address)
        reader.wait_ready()
        run_id = reader.status().freshness.run_id
        cluster.close()
        for server in reversed(started):
            server.stop(0)

        servers.num_ps = after
        servers.start_controller()
        for index in range(after):
            servers.start_ps(index, delta_every_s=0.05)
        cluster = servers.connect()
        cluster.create_tables(table_of())
        cluster.create_variables(VariableConfig("large", -large, Sgd(0.1)))
        push(cluster, ids[:5000])

        def is_of_the_new_run():
            try:
                found = reader.lookup_once("t", ids[5000:])
            except UnknownTable:  # the new job has not made it yet
                return False
            if found.freshness.run_id != run_id:  # then no row of the old one is left
                assert not np.frombuffer(found.rows[0], np.float32).any()

            status = reader.status()
            caught_up = all(ps.is_connected for ps in status.ps)
            return caught_up and len(status.ps) == after and status.freshness.run_id != run_id

        wait_until(is_of_the_new_run)
        reader.wait_for_a_version()
        assert_serves(reader, cluster, "t", ids)
        assert [table.config.name for table in reader.status().tables] == ["t"]
        assert reader.status().rows == 5000
        np.testing.assert_array_equal(reader.variables("large")[0], -large)


def test_two_replicas_of_one_index_are_told(servers, caplog):
    servers.connect().create_tables(table_of())
    first = ReplicaReader(servers.start_replica(0).address)
    first.wait_ready()
    servers.start_replica(0)
    wait_until(lambda: "two replicas have one --index" in caplog.text)


def test_a_replica_of_another_job_follows_nothing(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller(job="clicks")
        servers.start_ps(0)
        servers.connect().create_tables(table_of())
        servers.membership = lambda: MembershipSettings(
            model_dir=str(servers.model_dir), job="another"
        )
        reader = ReplicaReader(servers.start_replica(0).address)
        with pytest.raises(MegalithError, match="is of job another, this one is clicks"):
            reader.lookup("t", [1])
        assert not reader.status().is_ready
        assert not reader.status().ps


def test_a_hanging_replica_leaves_time_for_another(servers):
    """It takes calls, and answers none."""
    cluster = servers.connect()
    cluster.create_tables(table_of())
    push(cluster, [1])
    good = servers.start_replica(0)
    ReplicaReader(good.address).wait_ready()
    hanging = SilentServer()
    try:
        addresses = [hanging.address, good.address]
        with serving.connect(replicas=addresses, timeout_s=6) as client:
            for _ in range(4):
                found = client.lookup({"t": [1]})
                np.testing.assert_array_equal(
                    found.rows["t"], cluster.pull({"t": np.array([1])}).rows["t"]
                )
    finally:
        hanging.close()


class SilentServer:
    """A port that accepts connections and says nothing."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self):
        self._socket.close()


# --- calls that cannot be right ---

SDK_CALLS = {
    "list": lambda client: client.lookup(["t"]),
    "str": lambda client: client.lookup("t"),
    "None ids": lambda client: client.lookup({"t": None}),
    "int key": lambda client: client.lookup({5: [1]}),
    "ragged": lambda client: client.lookup({"t": [[1], [1, 2]]}),
    "float": lambda client: client.lookup({"t": [1.5]}),
    "bool": lambda client: client.lookup({"t": [True]}),
    "str ids": lambda client: client.lookup({"t": ["a"]}),
    "2d": lambda client: client.lookup({"t": [[1, 2]]}),
    "too large": lambda client: client.lookup({"t": [2**64]}),
    "unknown": lambda client: client.lookup({"x": [1]}),
    "unknown, empty": lambda client: client.lookup({"x": []}),
    "nan": lambda client: client.lookup({"t": [1]}, max_staleness_s=float("nan")),
    "inf": lambda client: client.lookup({"t": [1]}, max_staleness_s=float("inf")),
    "below 0": lambda client: client.lookup({"t": [1]}, max_staleness_s=-1),
    "far": lambda client: client.lookup({"t": [1]}, max_staleness_s=1e30),
    "below a microsecond": lambda client: client.lookup({"t": [1]}, max_staleness_s=1e-9),
    "variables str": lambda client: client.variables("w"),
    "variables int": lambda client: client.variables([5]),
    "variables 5": lambda client: client.variables(5),
    "variables unknown": lambda client: client.variables(["x"]),
}

RPC_CALLS = {
    "dtype": replica_pb2.LookupRequest(row_dtype=99),
    "ids of 7 bytes": replica_pb2.LookupRequest(
        tables=[replica_pb2.ServedIds(table="t", ids=b"1234567")]
    ),
    "unknown table": replica_pb2.LookupRequest(tables=[replica_pb2.ServedIds(table="x")]),
    "staleness": replica_pb2.LookupRequest(max_staleness_us=-1),
}


def test_bad_calls_of_the_sdk_and_the_rpcs_are_typed_errors(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    push(cluster, [1])
    replica = servers.start_replica(0)
    reader = ReplicaReader(replica.address)
    reader.wait_ready()
    with serving.connect(replicas=[replica.address], timeout_s=1) as client:
        for name, call in SDK_CALLS.items():
            print(name)
            with pytest.raises(MegalithError):
                call(client)
        assert client.lookup({"t": []}).rows["t"].shape[0] == 0
        assert client.lookup({}).rows == {}

    with grpc.insecure_channel(replica.address) as opened:
        stub = replica_pb2_grpc.ReplicaStub(opened)
        for name, request in RPC_CALLS.items():
            print(name)
            with pytest.raises(MegalithError), translated("replica"):
                stub.Lookup(request, timeout=10)


def _begin(run_id, **fields):
    fields.setdefault("replica", "x")
    return replication_pb2.FollowRequest(begin=replication_pb2.FollowBegin(run_id=run_id, **fields))


ACKNOWLEDGED = replication_pb2.FollowRequest(
    acknowledged=replication_pb2.AcknowledgeVersion(number=7)
)
FOLLOWS = {
    "acknowledged first": (lambda run: [ACKNOWLEDGED], InvalidRequest),
    "nothing": (lambda run: [], MegalithError),
    "no kind": (lambda run: [replication_pb2.FollowRequest()], InvalidRequest),
    "no name": (lambda run: [_begin(run, replica="")], InvalidRequest),
    "long name": (lambda run: [_begin(run, replica="x" * 129)], InvalidRequest),
    "another run": (lambda run: [_begin("other")], WrongRun),
    "no run": (lambda run: [_begin("")], MegalithError),
    "no such share": (lambda run: [_begin(run, share_index=2, share_count=2)], InvalidRequest),
    "share below 0": (lambda run: [_begin(run, share_index=-1, share_count=2)], InvalidRequest),
    "too many shares": (lambda run: [_begin(run, share_count=1025)], InvalidRequest),
    "shares below 0": (lambda run: [_begin(run, share_count=-1)], InvalidRequest),
    "wrong version": (lambda run: [_begin(run), ACKNOWLEDGED], InvalidRequest),
    "begins twice": (lambda run: [_begin(run), _begin(run)], InvalidRequest),
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_a_stream_that_cannot_be_right_is_refused(servers, name):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    routing = cluster.controller.routing_now(10, "")
    requests, error = FOLLOWS[name]
    with grpc.insecure_channel(routing.addresses[0]) as opened:
        stub = replication_pb2_grpc.ReplicationStub(opened)
        with pytest.raises(error), translated("ps-0"):
            for _ in stub.Follow(iter(requests(routing.run_id)), timeout=30):
                pass


def test_an_older_stream_of_a_name_ends_with_the_reason(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    routing = cluster.controller.routing_now(10, "")
    with grpc.insecure_channel(routing.addresses[0]) as opened:
        stub = replication_pb2_grpc.ReplicationStub(opened)
        replies = stub.Follow(_acknowledging(routing.run_id), timeout=30)
        next(replies)
        newer = stub.Follow(_acknowledging(routing.run_id), timeout=30)
        next(newer)
        with pytest.raises(IndexTaken, match="one --index"), translated("ps-0"):
            for _ in replies:
                pass
        newer.cancel()


def _acknowledging(run_id):
    yield _begin(run_id)
    for number in range(1, 1000):
        acknowledged = replication_pb2.AcknowledgeVersion(number=number)
        yield replication_pb2.FollowRequest(acknowledged=acknowledged)
