"""The bulk lane: the same meaning and the same errors as unary calls, on connections of its own."""

import socket
import struct
import threading

import grpc
import numpy as np
import pytest

from megalith.client import Ids, Segment, Sgd, TableConfig, VariableConfig, Zeros, errors
from megalith.protos import common_pb2, parameter_server_pb2_grpc
from megalith.protos import parameter_server_pb2 as pb
from megalith.runtime.lane import server as lane_server
from megalith.runtime.lane.settings import LaneSettings
from megalith.runtime.rpc.server import ServerSettings
from megalith.wire import arrays, frames
from megalith.wire.budget import ByteBudget
from megalith.wire.channel import open_channel
from megalith.wire.status import error_from_rpc
from support.servers import Servers
from support.waiting import wait_until

LIMIT = 1 << 20
IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 3_000)
TABLE = TableConfig("t", (Segment(2, Zeros(), Sgd(1.0)),))
WIDE = TableConfig("wide", (Segment(8, Zeros(), Sgd(1.0)),))


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with Servers(tmp_path_factory.mktemp("model"), num_ps=2) as servers:
        servers.start_controller()
        for index in range(2):
            servers.start_ps(index, server=ServerSettings(max_message_bytes=LIMIT))
        servers.connect().create_tables(TABLE, TableConfig("raw", TABLE.segments), WIDE)
        servers.connect().create_variables(VariableConfig("n", np.zeros((), np.int64)))
        yield servers


@pytest.fixture
def cluster(servers):
    with servers.connect() as cluster:
        yield cluster


class Raw:
    """ps-0 as a client in any language sees it, over both lanes.

    Pushes one id of its own to the table `raw`.
    """

    def __init__(self, routing, key):
        self.routing, self.key = routing, key
        self._channel = open_channel(routing.addresses[0])
        self.stub = parameter_server_pb2_grpc.ParameterServerStub(self._channel)
        self.terms = self.stub.Negotiate(pb.NegotiateRequest(run_id=routing.run_id), timeout=30)
        self.connect()

    def connect(self, token=None):
        host = self.routing.addresses[0].rpartition(":")[0]
        if hasattr(self, "sock"):
            self.sock.close()
        self.sock = socket.create_connection((host, self.terms.lane_port), 10)
        frames.prepare(self.sock)
        frames.set_timeout(self.sock, 10)
        frames.send(
            self.sock,
            pb.LaneHello(
                token=self.terms.lane_token if token is None else token
            ).SerializeToString(),
        )
        return self.reply()

    def close(self):
        self.sock.close()
        self._channel.close()

    def reply(self):
        sizes = frames.receive_sizes(self.sock)
        if sizes is None:
            return None
        head, self.body = bytearray(sizes.head), bytearray(sizes.body)
        frames.receive_into(self.sock, memoryview(head))
        frames.receive_into(self.sock, memoryview(self.body))
        return pb.LaneReply.FromString(bytes(head))

    def ask(self, request, *body):
        if not request.array_bytes:
            request.array_bytes.extend(len(part) for part in body)
        frames.send(self.sock, request.SerializeToString(), [memoryview(part) for part in body])
        return self.reply()

    def push_message(self, client_id, sequence=1, table="raw", **changes):
        run_id = self.routing.run_id
        request = {
            "epoch": self.routing.epoch,
            "run_id": run_id,
            "client_id": client_id,
            "sequence": sequence,
        }
        request |= {
            name: changes.pop(name) for name in list(changes) if name in (*request, "incarnation")
        }
        return pb.PushRequest(**request, tables=[pb.TableGradients(table=table, **changes)])

    def push(self, client_id, keys=None, gradients=None, **changes):
        keys = arrays.encode(np.array([self.key])) if keys is None else keys
        gradients = arrays.encode(np.ones((1, 2), np.float32)) if gradients is None else gradients
        return self.ask(
            pb.LaneRequest(push=self.push_message(client_id, **changes)), keys, gradients
        )

    def push_unary(self, client_id, **changes):
        request = self.push_message(client_id, **changes)
        request.tables[0].ids = arrays.encode(np.array([self.key]))
        request.tables[0].gradients = arrays.encode(np.ones((1, 2), np.float32))
        return self.stub.Push(request, timeout=30)

    def value(self):
        epoch, run_id = self.routing.epoch, self.routing.run_id
        request = pb.PullRequest(epoch=epoch, run_id=run_id, tables=[pb.TableIds(table="raw")])
        assert not self.ask(
            pb.LaneRequest(pull=request), arrays.encode(np.array([self.key]))
        ).HasField("error")
        return np.frombuffer(bytes(self.body), np.float32).tolist()


_next_key = iter(range(3_000))


@pytest.fixture
def raw(cluster):
    routing = cluster.controller.routing()
    mine = IDS[routing.owner_of(IDS) == 0]
    raw = Raw(routing, mine[next(_next_key)])
    yield raw
    raw.close()


def foreign(raw):
    return arrays.encode(IDS[raw.routing.owner_of(IDS) == 1][:1])


NAN = arrays.encode(np.array([[1, np.nan]], np.float32))
BAD_PUSHES = {
    "ids not a multiple of 8": ({"keys": b"1234567"}, "malformed_array", "7 bytes"),
    "gradient bytes cut": ({"gradients": b"1234567"}, "malformed_array", "7 bytes"),
    "no ids": ({"keys": b""}, "malformed_array", "for 0 ids"),
    "wrong width": ({"gradients": b"\0" * 12}, "shape_mismatch", "need (1, 2)"),
    "nan": ({"gradients": NAN}, "non_finite_value", "NaN"),
    "ids of another server": ({"keys": foreign}, "shard_not_owned", "not of shard 0"),
    "dtype of no row": ({"dtype": common_pb2.DTYPE_INT64}, "malformed_array", "dtype tag 2"),
    "unknown dtype": ({"dtype": 77}, "malformed_array", "dtype tag 77"),
    "unknown table": ({"table": "x"}, "unknown_table", "no table 'x'"),
    "stale epoch": ({"epoch": 0}, "stale_epoch", "epoch 0"),
    "future epoch": ({"epoch": 99}, "not_ready", "the request at 99"),
    "no client": ({"client_id": ""}, "invalid_request", "client id"),
}


@pytest.mark.parametrize("name", BAD_PUSHES)
def test_a_bad_push_is_the_typed_error_of_unary_calls_and_changes_nothing(raw, name):
    changes, code, message = BAD_PUSHES[name]
    changes = {key: value(raw) if callable(value) else value for key, value in changes.items()}
    reply = raw.push(**({"client_id": name} | changes))
    assert reply.error.code == code
    assert message in reply.error.message
    assert raw.value() == [0, 0]
    assert not raw.push(name).HasField("error"), "the connection is sound"
    assert raw.value() == [-1, -1]


def test_arrays_that_are_not_the_body_are_refused(raw):
    push = raw.push_message("arrays")
    for lengths in ([8], [8, 9], [16, -8], [8, 8, 0], []):
        reply = raw.ask(pb.LaneRequest(push=push, array_bytes=lengths or [0]), b"\0" * 16)
        assert reply.error.code == "malformed_array", lengths
    assert raw.ask(pb.LaneRequest()).error.code == "invalid_request"
    frames.send(raw.sock, b"\xff\xff\xff")
    assert "not a LaneRequest" in raw.reply().error.message
    assert raw.value() == [0, 0]


def test_bytes_that_are_no_frame_are_answered_and_the_connection_is_closed(raw):
    raw.sock.sendall(b"GET / HTTP/1.1\r\n")
    assert "do not start a frame" in raw.reply().error.message
    assert raw.sock.recv(1) == b""


def test_a_wrong_token_opens_nothing(raw):
    assert raw.connect(token=b"guessed").error.code == "access_denied"
    assert raw.sock.recv(1) == b""


def test_a_request_before_the_greeting_is_refused(raw):
    host = raw.routing.addresses[0].rpartition(":")[0]
    with socket.create_connection((host, raw.terms.lane_port), 10) as sock:
        frames.send(
            sock,
            pb.LaneRequest(push=raw.push_message("early")).SerializeToString(),
            [memoryview(b"x")],
        )
        raw.sock, before = sock, raw.sock
        assert raw.reply().error.code == "invalid_request"
        raw.sock = before
    assert raw.value() == [0, 0]


def test_an_oversize_request_is_refused_and_the_connection_goes_on(raw):
    reply = raw.push("big", keys=bytes(2 * LIMIT))
    assert reply.error.code == "message_too_large"
    assert raw.value() == [0, 0]


def test_an_oversize_reply_is_refused(cluster):
    with pytest.raises(errors.MessageTooLarge, match="a reply of"):
        cluster.pull(
            {"wide": np.arange(80_000)}
        )  # to each server 320 KB of ids, back 1280 KB of rows


def test_a_push_is_applied_once_whichever_lane_repeats_it(raw):
    raw.push_unary("both")
    assert not raw.push("both").HasField("error")
    raw.connect()
    assert not raw.push("both").HasField("error")
    raw.push_unary("both")
    assert raw.value() == [-1, -1]
    raw.push("both", sequence=2)
    raw.push_unary("both", sequence=2)
    assert raw.value() == [-2, -2]


def test_two_clients_with_the_same_id_are_told_apart(raw):
    raw.push_unary("twin", incarnation=1)
    assert raw.push("twin", incarnation=2).error.code == "client_id_taken"
    with pytest.raises(grpc.RpcError) as raised:
        raw.push_unary("twin", incarnation=2, sequence=2)
    assert type(error_from_rpc(raised.value, "ps")) is errors.ClientIdTaken
    assert raw.value() == [-1, -1]


def test_a_sequence_from_the_past_is_refused_on_both_lanes(raw):
    raw.push("past", sequence=500)
    assert raw.push("past", sequence=3).error.code == "sequence_expired"
    with pytest.raises(grpc.RpcError) as raised:
        raw.push_unary("past", sequence=3)
    assert type(error_from_rpc(raised.value, "ps")) is errors.SequenceExpired
    assert raw.value() == [-1, -1]


def test_a_client_that_dies_in_mid_push_changes_nothing(raw):
    head = pb.LaneRequest(push=raw.push_message("dies"), array_bytes=[8, 8]).SerializeToString()
    raw.sock.sendall(
        struct.pack("<4sIQ", frames.MAGIC, len(head), 16)
        + head
        + arrays.encode(np.array([raw.key]))
    )
    raw.sock.close()
    raw.connect()
    assert raw.value() == [0, 0]
    raw.push("dies")
    assert raw.value() == [-1, -1]


def test_a_call_that_waited_longer_than_its_deadline_is_not_begun(raw):
    request = pb.LaneRequest(push=raw.push_message("late"), array_bytes=[8, 8], timeout_ms=1)
    head, keys = request.SerializeToString(), arrays.encode(np.array([raw.key]))
    raw.sock.sendall(struct.pack("<4sIQ", frames.MAGIC, len(head), 16) + head + keys)
    assert not threading.Event().wait(
        0.05
    )  # the deadline passes while the server waits for the rest
    raw.sock.sendall(arrays.encode(np.ones((1, 2), np.float32)))
    assert raw.reply().error.code == "deadline_passed"
    assert raw.value() == [0, 0]


# --- through the SDK ---


@pytest.mark.parametrize("options", [{}, {"bulk_lane": False}])
def test_rows_come_back_in_the_order_asked_for_over_both_lanes(servers, options):
    with servers.connect(**options) as cluster:
        before = cluster.pull({"t": IDS}).rows["t"]
        gradients = -np.arange(2 * IDS.size, dtype=np.float32).reshape(-1, 2)
        cluster.push({"t": (IDS, gradients)}, add_to_variables={"n": np.array(1)})
        order = np.random.default_rng(1).permutation(IDS.size)
        np.testing.assert_array_equal(
            cluster.pull({"t": IDS[order]}).rows["t"], (before - gradients)[order]
        )


@pytest.mark.golden("DistributedPsTest.float16_transfer")
@pytest.mark.parametrize("options", [{}, {"bulk_lane": False}])
def test_float16_transfer_gives_the_same_integers(servers, options):
    ids = np.arange(100) + (1 << 40 if options else 1 << 41)
    with servers.connect(row_dtype="float16", gradient_dtype="float16", **options) as cluster:
        cluster.push({"t": (np.repeat(ids, 2), np.full((200, 2), -3, np.float32))})
        rows = cluster.pull({"t": ids}).rows["t"]
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, np.full((100, 2), 6))
        with pytest.raises(errors.NonFiniteValue, match="beyond float16"):
            cluster.push({"t": (ids[:1], np.full((1, 2), 7e4, np.float32))})
        # A row beyond the range of float16 reads as its largest number.
        with servers.connect() as exact:
            exact.push({"t": (ids[:1], np.full((1, 2), -1e6, np.float32))})
        np.testing.assert_array_equal(cluster.pull({"t": ids[:1]}).rows["t"], [[65504, 65504]])


def test_ids_searched_once_serve_a_pull_and_a_push(cluster):
    ids = Ids(np.array([1, 2, 1]) + (1 << 42))
    assert cluster.pull({"t": ids}).rows["t"].shape == (3, 2)
    cluster.push({"t": (ids, np.ones((3, 2), np.float32))})
    np.testing.assert_array_equal(
        cluster.pull({"t": ids}).rows["t"], [[-2, -2], [-1, -1], [-2, -2]]
    )


def test_a_broken_promise_of_distinct_ids_is_refused(cluster):
    key = np.full(2, 1 << 43)
    with pytest.raises(errors.DuplicateIds):
        cluster.push({"t": (Ids(key, distinct=True), np.ones((2, 2), np.float32))})
    np.testing.assert_array_equal(cluster.pull({"t": key[:1]}).rows["t"], [[0, 0]])


def test_one_begun_call_too_many_waits_for_the_oldest_in_the_caller(servers):
    with servers.connect(max_inflight=2) as cluster:
        calls = [cluster.begin_pull({"t": [1]}) for _ in range(3)]
        assert calls[0].is_done
        assert not any(call.is_done for call in calls[1:])


@pytest.mark.parametrize("bulk_lane", [True, False])
def test_a_begun_call_tells_when_its_answer_is_there(servers, bulk_lane):
    with servers.connect(bulk_lane=bulk_lane) as cluster:
        call = cluster.begin_pull({"t": [1]})
        wait_until(lambda: call.is_answered)
        assert not call.is_done
        assert call.result().rows["t"].shape == (1, 2)
        assert call.is_answered


def test_without_a_lane_calls_are_unary(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        servers.start_ps(0, bulk_lane=False)
        with servers.connect() as cluster:
            cluster.create_tables(TABLE)
            cluster.push({"t": ([1], np.ones((1, 2), np.float32))})
            np.testing.assert_array_equal(cluster.pull({"t": [1, 2]}).rows["t"], [[-1, -1], [0, 0]])


def test_options_that_cannot_be_are_refused(servers):
    for options in ({"row_dtype": "int8"}, {"max_inflight": 0}, {"max_inflight_bytes": 0}):
        with pytest.raises(errors.InvalidRequest):
            servers.connect(**options)


def test_a_closed_client_opens_nothing_more(servers):
    cluster = servers.connect()
    cluster.pull({TABLE.name: [1]})
    cluster.close()
    with pytest.raises(errors.InvalidRequest, match="closed"):
        cluster.pull({TABLE.name: [1]})


class FakeCalls:
    def refusal(self, method, error):
        return pb.LaneReply(error=pb.LaneError(code=error.code, message=str(error)))


def test_a_connection_that_arrives_while_the_server_stops_does_not_disturb_the_stop(monkeypatch):
    """Its thread is there to be joined, but the system is slow to start it."""
    starting, stopping = threading.Event(), threading.Event()

    class SlowThread(threading.Thread):
        def start(self):
            if self.name == "lane":
                starting.set()
                stopping.wait(0.3)
            super().start()

    monkeypatch.setattr(lane_server.threading, "Thread", SlowThread)
    server = lane_server.LaneServer(
        "127.0.0.1",
        0,
        FakeCalls(),
        LIMIT,
        ByteBudget(LIMIT),
        ByteBudget(LIMIT),
        LaneSettings(),
    )
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), 30) as sock:
        assert starting.wait(30)
        server.stop(5)
        stopping.set()
        assert sock.recv(1) == b""
