"""The health protocol of every server: one that watches and does not read holds up nobody."""

import queue
import socket
import struct
import threading
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.rpc import health
from megalith.runtime.rpc import server as runtime_server
from megalith.runtime.rpc.server import RpcServer, ServerSettings
from megalith.wire.channel import open_channel
from support.waiting import LIMIT_S, wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def server():
    server = RpcServer(ServerSettings(), Metrics(), {"a.Service": lambda server: None})
    server.start()
    yield server
    server.stop(0)


@pytest.fixture
def stub(server):
    with open_channel(server.address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def check(stub, service=""):
    return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def watch_without_reading(address):
    """A watcher in plain HTTP/2 that allows the server to send nothing at all."""
    no_window = struct.pack(">HI", 4, 0)
    headers = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/grpc.health.v1.Health/Watch"),
        (b":authority", b"here"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    host, _, port = address.rpartition(":")
    watcher = socket.create_connection((host, int(port)))
    watcher.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, no_window))
    watcher.sendall(frame(4, 1, 0, b""))
    watcher.sendall(frame(1, 4, 1, b"".join(literal(*header) for header in headers)))
    watcher.sendall(frame(0, 1, 1, bytes(5)))
    return watcher


@pytest.mark.timeout(60)
def test_a_watcher_that_reads_nothing_holds_up_neither_checks_nor_other_watchers(server, stub):
    with watch_without_reading(server.address) as watcher:
        watcher.settimeout(10)
        seen = b""
        while b"application/grpc" not in seen:  # the stream has begun
            seen += watcher.recv(4096)

        told = queue.SimpleQueue()
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=50)
        threading.Thread(target=lambda: put_all(watched, told), daemon=True).start()
        assert told.get(timeout=20) == NOT_SERVING
        server.set_serving(True)
        assert told.get(timeout=20) == SERVING
        assert check(stub) == SERVING
        server.set_serving(False)
        assert told.get(timeout=20) == NOT_SERVING
        watched.cancel()


def put_all(watched, told):
    try:
        for answer in watched:
            told.put(answer.status)
        told.put("ended")
    except grpc.RpcError as error:
        told.put(error.code())


@pytest.mark.timeout(60)
def test_watchers_are_told_of_the_end_and_then_left(server, stub):
    server.set_serving(True)
    told = queue.SimpleQueue()
    watched = stub.Watch(health_pb2.HealthCheckRequest(service="a.Service"), timeout=50)
    threading.Thread(target=lambda: put_all(watched, told), daemon=True).start()
    assert told.get(timeout=20) == SERVING
    server.stop(30)
    assert (told.get(timeout=20), told.get(timeout=20)) == (NOT_SERVING, "ended")


@pytest.mark.timeout(60)
def test_a_server_stops_though_a_watcher_begins_meanwhile(server, stub):
    server._health.shut_down()  # as a stop begins
    watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
    assert [answer.status for answer in watched] == [NOT_SERVING]
    stopping = threading.Thread(target=server.stop, args=(0,), daemon=True)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()


def test_a_stop_goes_on_although_grpc_does_not_end(monkeypatch, caplog):
    monkeypatch.setattr(runtime_server, "_END_S", 0.1)
    server = RpcServer(ServerSettings(), Metrics(), {})
    server.start()
    grpc_server = server._server
    server._server = SimpleNamespace(stop=lambda grace_s: threading.Event())
    server.stop(0)
    assert "gRPC has not ended" in caplog.text
    assert server._metrics_server._server is None
    assert grpc_server.stop(0).wait(LIMIT_S)


def test_a_service_that_a_server_does_not_have_is_unknown(server, stub):
    with pytest.raises(grpc.RpcError) as raised:
        check(stub, "b.Service")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    watched = stub.Watch(health_pb2.HealthCheckRequest(service="b.Service"), timeout=20)
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watched.cancel()


@pytest.mark.timeout(60)
def test_more_watchers_than_there_is_room_for_are_refused_and_checks_are_answered(server, stub):
    request = health_pb2.HealthCheckRequest()
    watchers = [stub.Watch(request, timeout=50) for _ in range(health._WATCHERS)]
    for watcher in watchers:
        assert next(watcher).status == NOT_SERVING
    with pytest.raises(grpc.RpcError) as raised:
        next(stub.Watch(request, timeout=20))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert check(stub) == NOT_SERVING
    watchers[0].cancel()

    def has_room():
        watched = stub.Watch(request, timeout=20)
        try:
            return next(watched).status == NOT_SERVING
        except grpc.RpcError:
            return False
        finally:
            watched.cancel()

    wait_until(has_room)
    for watcher in watchers:
        watcher.cancel()
