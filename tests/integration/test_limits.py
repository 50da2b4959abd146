"""What a peer can take from a server: little, and not for long. Others go on meanwhile."""

import contextlib
import socket
import threading
import time
import tracemalloc

import numpy as np
import pytest

from megalith.client import Segment, Sgd, TableConfig, Zeros, errors
from megalith.controller.config import ControllerServerSettings
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.ps.lane_calls import PsLaneCalls
from megalith.ps.resident_memory import resident_bytes
from megalith.runtime.lane.calls import LaneCalls
from megalith.runtime.lane.settings import LaneSettings
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.process import file_limit
from megalith.runtime.rpc.server import ServerSettings
from megalith.wire import frames
from megalith.wire.channel import open_channel
from megalith.wire.status import error_from_rpc
from support import lane_peer
from support.servers import Servers
from support.waiting import wait_until

TABLE = TableConfig("t", (Segment(2, Zeros(), Sgd(1.0)),))
GIB = 1 << 30


@contextlib.contextmanager
def one_ps(path, **settings):
    """(servers, the ps) with the table `t`."""
    with Servers(path) as servers:
        servers.start_controller()
        ps = servers.start_ps(0, **settings)
        servers.connect().create_tables(TABLE)
        yield servers, ps


def is_closed(sock):
    """Whether the server has closed this connection, which it says nothing on."""
    try:
        return sock.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def send_a_byte(sock):
    with contextlib.suppress(OSError):
        sock.send(b"x")


@pytest.mark.parametrize("options", [{}, {"bulk_lane": False}])
def test_four_bodies_that_trickle_stop_nobody_and_are_dropped(tmp_path, options):
    """By what they announce they fill the budget of 1 GiB."""
    with one_ps(tmp_path, lane=LaneSettings(lane_stall_s=1.0)) as (servers, ps):
        terms = lane_peer.negotiate(servers)
        body_bytes = GIB // 4 - 64
        head = pb.LaneRequest(
            pull=pb.PullRequest(tables=[pb.TableIds(table="t")]), array_bytes=[body_bytes]
        )
        slow = [lane_peer.connect(ps.address, terms) for _ in range(4)]
        for sock in slow:
            sock.sendall(lane_peer.start(head.SerializeToString(), body_bytes))
        ids = np.arange(1000)
        began = time.monotonic()
        with servers.connect(timeout_s=60, **options) as cluster:
            while time.monotonic() - began < 0.5:
                for sock in slow:
                    send_a_byte(sock)
                cluster.push({"t": (ids, np.ones((1000, 2), np.float32))})
                assert cluster.pull({"t": ids}).rows["t"].shape == (1000, 2)
        closed = set()

        def are_dropped():
            for sock in slow:
                send_a_byte(sock)
                closed.update([sock] if is_closed(sock) else [])
            return len(closed) == 4

        wait_until(are_dropped)
        assert ps._lane._requests.held_bytes == 0
        for sock in slow:
            sock.close()


@pytest.mark.parametrize("options", [{}, {"bulk_lane": False}])
def test_a_client_outlasts_an_overload_that_is_longer_than_a_server_waits(tmp_path, options):
    with one_ps(tmp_path, lane=LaneSettings(room_wait_s=0.02)) as (servers, ps):
        ps._lane._requests.take(GIB, 1)
        answers = []

        def push():
            with servers.connect(timeout_s=600, **options) as cluster:
                cluster.push({"t": ([7], np.ones((1, 2), np.float32))})
                answers.append(cluster.pull({"t": [7]}).rows["t"].tolist())

        caller = threading.Thread(target=push)
        caller.start()
        method = "lane" if not options else "/megalith.v1.ParameterServer/Push"
        refused = ps._lane._calls._metrics.rpc_total.labels(method, "overloaded")._value
        try:
            wait_until(lambda: refused.get() >= 5)
            assert not answers
        finally:
            ps._lane._requests.release(GIB)
        caller.join(30)
        assert answers == [[[-1, -1]]]


@pytest.mark.parametrize("options", [{}, {"bulk_lane": False}])
def test_600_000_ids_of_a_2048_wide_table_are_refused_before_any_memory_is_taken(
    tmp_path, options, monkeypatch
):
    with one_ps(tmp_path) as (servers, _), servers.connect(**options) as cluster:
        cluster.create_tables(TableConfig("wide", (Segment(2048, Zeros(), Sgd(1.0)),)))
        monkeypatch.setattr(EmbeddingTable, "lookup", lambda *_: pytest.fail("rows are looked up"))
        with pytest.raises(errors.MessageTooLarge, match=f"a reply of {600_000 * 2048 * 4} bytes"):
            cluster.pull({"wide": np.arange(600_000)})


def test_lengths_of_arrays_are_counted_before_the_body_is_cut():
    head = pb.LaneRequest(pull=pb.PullRequest(), array_bytes=[0]).SerializeToString()
    lengths = pb.LaneRequest(array_bytes=[0] * 7_600_000).SerializeToString()
    calls = LaneCalls(PsLaneCalls(None).call, Metrics(), b"", GIB)
    tracemalloc.start()
    try:
        reply, _ = calls.answer(
            memoryview(head + lengths), memoryview(b""), 0.0, lambda nbytes: None
        )
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reply.error.code == "malformed_array"
    assert peak_bytes < 20 << 20


def test_a_head_that_is_no_head_of_data_is_refused_and_the_connection_goes_on(tmp_path):
    with one_ps(tmp_path) as (servers, ps):
        terms = lane_peer.negotiate(servers)
        with lane_peer.connect(ps.address, terms) as sock:
            sock.sendall(lane_peer.start(bytes(frames.MAX_HEAD_BYTES + 1), 0))
            assert lane_peer.reply(sock).error.code == "message_too_large"
            frames.send(sock, pb.LaneRequest().SerializeToString())
            assert lane_peer.reply(sock).error.code == "invalid_request"


def test_a_client_that_does_not_take_its_reply_is_dropped_and_its_memory_given_back(tmp_path):
    with one_ps(tmp_path, lane=LaneSettings(lane_reply_s=0.3)) as (servers, ps):
        terms = lane_peer.negotiate(servers)
        routing = servers.connect().controller.routing()
        pull = pb.PullRequest(
            epoch=routing.epoch, run_id=routing.run_id, tables=[pb.TableIds(table="t")]
        )
        keys = memoryview(np.arange(1 << 22)).cast("B")  # 32 MB back: more than sockets hold
        with lane_peer.connect(ps.address, terms) as sock:
            frames.send(
                sock,
                pb.LaneRequest(pull=pull, array_bytes=[keys.nbytes]).SerializeToString(),
                [keys],
            )
            wait_until(lambda: ps._lane._replies.held_bytes == 32 << 20)
            wait_until(lambda: ps._lane._replies.held_bytes == 0)
            wait_until(lambda: not ps._lane._connections)


def test_forty_idle_connections_keep_little_of_what_they_have_sent(tmp_path):
    with one_ps(tmp_path) as (servers, ps):
        terms = lane_peer.negotiate(servers)
        body = memoryview(bytes(16 << 20))
        head = pb.LaneRequest(array_bytes=[body.nbytes]).SerializeToString()
        before_bytes = resident_bytes()
        idle = []
        for _ in range(40):
            idle.append(lane_peer.connect(ps.address, terms))
            frames.send(idle[-1], head, [body])
            assert lane_peer.reply(idle[-1]).error.code == "invalid_request"
        assert resident_bytes() - before_bytes < 200 << 20
        for sock in idle:
            sock.close()


def test_a_connection_without_a_token_is_closed_in_time_although_it_sends_bytes(tmp_path):
    with one_ps(tmp_path, lane=LaneSettings(lane_hello_s=0.2)) as (servers, ps):
        terms = lane_peer.negotiate(servers)
        silent = lane_peer.connect(ps.address, terms, hello=False)
        trickling = lane_peer.connect(ps.address, terms, hello=False)
        trickling.sendall(lane_peer.start(b"", 0)[:4] + (4000).to_bytes(4, "little") + bytes(8))
        began = time.monotonic()

        def are_closed():
            send_a_byte(trickling)
            return is_closed(silent) and is_closed(trickling)

        wait_until(are_closed)
        assert time.monotonic() - began < 5
        silent.close()
        trickling.close()


def test_a_client_that_finds_the_lane_full_is_served_by_unary_calls_at_once(tmp_path):
    with one_ps(tmp_path, lane=LaneSettings(lane_connections=2)) as (servers, ps):
        terms = lane_peer.negotiate(servers)
        others = [lane_peer.connect(ps.address, terms) for _ in range(2)]
        with servers.connect(timeout_s=30) as cluster:
            began = time.monotonic()
            cluster.push({"t": ([1], np.ones((1, 2), np.float32))})
            assert cluster.pull({"t": [1]}).rows["t"].tolist() == [[-1, -1]]
            assert time.monotonic() - began < 4
        for sock in others:
            sock.close()


def test_connections_beyond_those_of_one_machine_are_turned_away(tmp_path, caplog):
    with one_ps(tmp_path, lane=LaneSettings(lane_connections_per_peer=3)) as (servers, ps):
        terms = lane_peer.negotiate(servers)
        others = [lane_peer.connect(ps.address, terms) for _ in range(3)]
        with lane_peer.connect(ps.address, terms, hello=False) as sock:
            assert "3 connections of 127.0.0.1 are open" in lane_peer.reply(sock).error.message
        assert "the bulk lane refuses connections" in caplog.text
        for sock in others:
            sock.close()
        wait_until(lambda: not ps._lane._count_by_peer)
        lane_peer.connect(ps.address, terms).close()


def test_a_client_keeps_its_sound_connection_when_it_gets_no_second_one(tmp_path):
    with (
        one_ps(tmp_path, lane=LaneSettings(lane_connections=1)) as (servers, ps),
        servers.connect(timeout_s=30) as cluster,
    ):
        cluster.pull({"t": [1]})
        lane = cluster._servers._links._lanes[ps.address]
        (sound,) = lane._idle
        calls = [cluster.begin_pull({"t": [number]}) for number in range(3)]
        assert [call.result().rows["t"].tolist() for call in calls] == [[[0, 0]]] * 3
        assert cluster._servers._links._lanes[ps.address] is lane
        assert lane._idle == [sound]


def test_more_than_512_workers_with_two_connections_each_find_a_place(tmp_path):
    file_limit.raise_soft_limit()
    with one_ps(tmp_path) as (servers, ps):
        terms = lane_peer.negotiate(servers)
        held = [lane_peer.connect(ps.address, terms) for _ in range(1_100)]
        with servers.connect(timeout_s=30) as cluster:
            cluster.pull({"t": [1]})
            assert len(cluster._servers._links._lanes[ps.address]._idle) == 1
        for sock in held:
            sock.close()


def test_an_error_beside_many_long_names_of_tables_is_told_as_what_it_is(tmp_path):
    with one_ps(tmp_path) as (servers, ps):
        cluster = servers.connect()
        cluster.create_tables(
            *[TableConfig(f"{number:03}" + "n" * 120, TABLE.segments) for number in range(100)]
        )
        with open_channel(ps.address) as channel:
            stub = parameter_server_pb2_grpc.ParameterServerStub(channel)
            routing = cluster.controller.routing()
            request = pb.PullRequest(
                epoch=routing.epoch, run_id=routing.run_id, tables=[pb.TableIds(table="x")]
            )
            with pytest.raises(Exception, match="has no table 'x'"):
                stub.Pull(request, timeout=30)
        with (
            servers.connect(bulk_lane=False) as unary,
            pytest.raises(errors.UnknownTable, match="and 93 more"),
        ):
            unary.pull({"x": [1]})


class HalfSent:
    """Calls that send headers and nothing else, each on its own stream, over a few connections."""

    def __init__(self, address, method, count):
        self._silence = threading.Event()
        self._channels = [open_channel(address) for _ in range(4)]
        self.calls = []
        for number in range(count):
            channel = self._channels[number % len(self._channels)]
            self.calls.append(channel.stream_stream(method)(self._nothing()))

    def _nothing(self):
        self._silence.wait(60)
        return
        yield

    def num_ended(self):
        return sum(not call.is_active() for call in self.calls)

    def close(self):
        self._silence.set()
        for channel in self._channels:
            channel.close()


REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
CONTROLLER = "/megalith.v1.Coordination"
PS = "/megalith.v1.ParameterServer"
HEALTH = "/grpc.health.v1.Health/Check"


@pytest.mark.parametrize("method", [f"{PS}/Push", f"{PS}/Negotiate", HEALTH, REFLECTION])
def test_half_sent_calls_and_idle_reflection_do_not_stop_the_unary_calls_of_a_ps(tmp_path, method):
    with one_ps(tmp_path) as (servers, ps):
        silent = HalfSent(ps.address, method, 40)
        try:
            with servers.connect(timeout_s=30, bulk_lane=False) as cluster:
                for _ in range(3):
                    cluster.push({"t": ([1], np.ones((1, 2), np.float32))})
                assert cluster.pull({"t": [1]}).rows["t"].tolist() == [[-3, -3]]
        finally:
            silent.close()


@pytest.mark.parametrize("method", [f"{CONTROLLER}/GetStatus", f"{CONTROLLER}/Session", REFLECTION])
def test_half_sent_calls_and_silent_sessions_keep_neither_operators_nor_members_out(
    tmp_path, method
):
    """More of them than the controller has threads: 2 x (1 ps) + 8 for sessions, and 16."""
    with Servers(tmp_path) as servers:
        servers.start_controller()
        silent = HalfSent(servers.controller.address, method, 60)
        try:
            assert servers.connect().controller.status().phase == "forming"
            servers.start_ps(0)
            wait_until(lambda: servers.connect().controller.status().phase != "forming")
        finally:
            silent.close()


def test_a_call_that_never_sends_its_message_is_given_up(tmp_path):
    settings = ServerSettings(request_timeout_s=0.2, first_message_s=0.2)
    with one_ps(tmp_path, server=settings) as (servers, ps):
        silent = HalfSent(ps.address, f"{PS}/Push", 3)
        wait_until(lambda: silent.num_ended() == 3)
        silent.close()
        assert servers.connect(bulk_lane=False).pull({"t": [1]}).rows["t"].tolist() == [[0, 0]]


def test_a_session_that_never_registers_is_ended(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_controller(
            server=ControllerServerSettings(port=0, metrics_port=0, first_message_s=0.2)
        )
        silent = HalfSent(servers.controller.address, f"{CONTROLLER}/Session", 3)
        wait_until(lambda: silent.num_ended() == 3)
        silent.close()


def test_calls_beyond_those_that_may_wait_are_told_to_come_again(tmp_path):
    settings = ServerSettings(rpc_threads=1, max_waiting_calls=2)
    with one_ps(tmp_path, server=settings, max_replicas=1) as (servers, ps):  # a thread for each
        ps._lane._requests.take(GIB, 1)
        routing = servers.connect().controller.routing()
        request = pb.PullRequest(epoch=routing.epoch, run_id=routing.run_id)
        try:
            with open_channel(ps.address) as channel:
                stub = parameter_server_pb2_grpc.ParameterServerStub(channel)
                calls = [stub.Pull.future(request, timeout=30) for _ in range(5)]
                refused = wait_until(lambda: [call for call in calls if call.done()])
                assert type(error_from_rpc(refused[0].exception(), "ps")) is errors.Overloaded
                ps._lane._requests.release(GIB)
                assert sum(call.exception() is None for call in calls) == 4
        finally:
            ps._lane._requests._held = 0


@pytest.mark.skipif(not socket.has_ipv6, reason="the machine has no IPv6")
def test_every_address_of_both_families_reaches_the_lane(tmp_path):
    with one_ps(tmp_path, server=ServerSettings(host="::", advertise_host="127.0.0.1")) as (
        servers,
        _,
    ):
        terms = lane_peer.negotiate(servers)
        for host in ("127.0.0.1", "::1"):
            lane_peer.connect(f"[{host}]:0", terms).close()
