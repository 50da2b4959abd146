"""What ends the session of a member, and what does not."""

import threading
from concurrent import futures

import grpc
import pytest

from megalith.protos import coordination_pb2, coordination_pb2_grpc
from megalith.runtime.joining import session as session_module
from megalith.runtime.joining.lease import Lease
from megalith.runtime.joining.membership import MembershipSettings
from megalith.runtime.joining.presence import Presence
from megalith.runtime.joining.session import ControllerSession
from megalith.wire.status import CODE_KEY
from support.waiting import LIMIT_S, wait_until


class Controller(coordination_pb2_grpc.CoordinationServicer):
    """Ends each stream in turn as it is told to, and then welcomes."""

    def __init__(self, *ends):
        self.ends = list(ends)

    def Session(self, requests, context):
        next(requests)
        if self.ends:
            status, code = self.ends.pop(0)
            context.set_trailing_metadata(((CODE_KEY, code),) if code else ())
            context.abort(status, "so it ends")

        yield coordination_pb2.SessionResponse(welcome=coordination_pb2.Welcome(generation=1))
        yield from (self.answer(request) for request in requests)

    def answer(self, request):
        if request.HasField("renewal"):
            renewed = coordination_pb2.Renewed(sent_ns=request.renewal.sent_ns)
            return coordination_pb2.SessionResponse(renewed=renewed)

        shutdown = coordination_pb2.Shutdown(reason="taken over")
        return coordination_pb2.SessionResponse(shutdown=shutdown)


class Member:
    """Keeps what happens to it."""

    def __init__(self):
        self.happened = []

    def register(self):
        return coordination_pb2.Register()

    def report(self):
        return coordination_pb2.SessionRequest(ps=coordination_pb2.PsReport())

    def on_welcome(self, welcome):
        self.happened.append("welcome")

    def on_shutdown(self, reason):
        self.happened.append(reason)

    def on_lost(self, error):
        self.happened.append(type(error).__name__)


@pytest.fixture
def joined():
    """Begins the session of a member with a controller that ends streams so."""
    servers = []
    sessions = []

    def join(*ends):
        server = grpc.server(futures.ThreadPoolExecutor(4))
        coordination_pb2_grpc.add_CoordinationServicer_to_server(Controller(*ends), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        address = f"127.0.0.1:{port}"
        member = Member()
        lease = Lease()
        settings = MembershipSettings(controller=address, heartbeat_s=60.0)
        presence = Presence("ps", 0, None, address, "")
        session = ControllerSession(settings, member, presence, lease)
        session.start()
        sessions.append(session)
        return member, lease, session

    yield join
    for session in sessions:
        session.stop()
        assert not session._beating.is_alive()
    for server in servers:
        assert server.stop(0).wait(LIMIT_S)


@pytest.mark.parametrize(
    "end",
    [
        (grpc.StatusCode.UNKNOWN, ""),  # the stream was removed
        (grpc.StatusCode.INTERNAL, ""),  # a proxy reset it
        (grpc.StatusCode.DEADLINE_EXCEEDED, ""),
        (grpc.StatusCode.INTERNAL, "internal"),  # a fault inside the controller: out of threads
    ],
)
def test_a_member_whose_stream_breaks_in_whatever_manner_comes_back(joined, end):
    member, lease, _ = joined(end, end)
    wait_until(lambda: member.happened)
    assert member.happened == ["welcome"]
    assert lease.is_held


class Mute(coordination_pb2_grpc.CoordinationServicer):
    """Takes a stream and never ends it, as a controller without a free thread."""

    def __init__(self):
        self.may_end = threading.Event()

    def Session(self, requests, context):
        self.may_end.wait(LIMIT_S)
        yield from ()


def test_a_stop_ends_a_stream_that_is_opened_while_it_waits(monkeypatch):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    mute = Mute()
    coordination_pb2_grpc.add_CoordinationServicer_to_server(mute, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    is_opening = threading.Event()
    may_open = threading.Event()

    def open_late(target):
        is_opening.set()
        may_open.wait(LIMIT_S)
        return grpc.insecure_channel(target)

    monkeypatch.setattr(session_module.channel, "open_channel", open_late)
    settings = MembershipSettings(controller=address, heartbeat_s=60.0)
    session = ControllerSession(settings, Member(), Presence("ps", 0, None, address, ""))
    session.start()
    assert is_opening.wait(LIMIT_S)
    stopping = threading.Thread(target=session.stop, daemon=True)
    stopping.start()
    stopping.join(2 * session_module._CLOSE_S)  # it has looked for a stream, and there was none
    assert stopping.is_alive()
    may_open.set()
    stopping.join(20)
    assert not stopping.is_alive()
    mute.may_end.set()
    assert server.stop(0).wait(LIMIT_S)


def test_a_member_that_is_refused_ends_and_believes_no_client_after_it(joined):
    member, lease, _ = joined((grpc.StatusCode.FAILED_PRECONDITION, "not_in_cluster"))
    wait_until(lambda: member.happened)
    assert member.happened == ["NotInCluster"]
    assert lease._is_denied


def test_a_member_that_is_told_to_exit_believes_no_client_after_it(joined):
    member, lease, session = joined()
    wait_until(lambda: member.happened)
    session.report_now()
    wait_until(lambda: len(member.happened) == 2)
    assert member.happened == ["welcome", "taken over"]
    assert lease._is_denied
