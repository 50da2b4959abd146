"""The client's end of the bulk lane, against servers that misbehave."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from megalith.client._transport.requests import DataCall
from megalith.errors import (
    DeadlinePassed,
    MalformedArray,
    MegalithError,
    MessageTooLarge,
    PeerUnreachable,
)
from megalith.protos import parameter_server_pb2 as pb
from megalith.wire import frames
from megalith.wire.lane import Lane, LaneClosed, NotSent


class Server:
    """Accepts connections, greets, reads one request each and answers with the bytes given.

    None = not at all.
    """

    def __init__(self, answer, hangs_up=False):
        self._answer, self._hangs_up, self.connections = answer, hangs_up, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.terms = pb.NegotiateResponse(
            lane_port=self._listener.getsockname()[1], max_message_bytes=1 << 20
        )
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(sock)
            with contextlib.suppress(MegalithError, OSError):  # the client may give up at any point
                self._skip(sock)
                frames.send(sock, b"")
                self._skip(sock)
                if self._answer is not None:
                    sock.sendall(self._answer)
                if self._hangs_up:
                    sock.shutdown(socket.SHUT_WR)

    def _skip(self, sock):
        sizes = frames.receive_sizes(sock)
        frames.receive_into(sock, memoryview(bytearray(sizes.head + sizes.body)))

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self.connections:
            sock.close()


@pytest.fixture
def serve():
    opened = []

    def start(answer, hangs_up=False):
        server = Server(answer, hangs_up)
        lane = Lane("127.0.0.1:1", server.terms)
        opened.extend((lane, server))
        return server, lane

    yield start
    for item in opened:
        item.close()


def frame(reply, body=b""):
    left, right = socket.socketpair()
    with left, right:
        frames.send(left, reply.SerializeToString(), [memoryview(body)] if body else [])
        return right.recv(1 << 16)


def pull(sink=None):
    message = pb.PullRequest(tables=[pb.TableIds(table="t")])
    memory = bytearray(8)
    return DataCall(
        message,
        [np.zeros(1, np.int64)],
        1,
        sink or (lambda place, nbytes: memoryview(memory)[:nbytes]),
    )


def soon():
    return time.monotonic() + 10


def test_a_call_is_not_sent_on_a_connection_that_its_server_closed_meanwhile(serve):
    """Sent there, nobody could tell whether the server had got it."""
    server, lane = serve(frame(pb.LaneReply(pull=pb.PullResponse(), array_bytes=[8]), b"8 bytes."))
    lane.start(pull(), soon()).finish(soon())
    assert len(lane._idle) == 1
    server.connections[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(NotSent, match=r"closed the connection before the call was sent"):
        lane.start(pull(), soon())
    lane.start(pull(), soon()).finish(soon())


def test_a_server_that_does_not_answer_is_given_up_at_the_deadline_and_hung_up_on(serve):
    server, lane = serve(None)
    call = lane.start(pull(), soon())
    with pytest.raises(DeadlinePassed, match=r"ps at 127\.0\.0\.1:1"):
        call.finish(time.monotonic() + 0.2)
    server.connections[0].settimeout(10)
    assert server.connections[0].recv(1) == b""


def test_a_server_that_hangs_up_is_unreachable(serve):
    for answer in (
        b"MGL1\x05",
        frame(pb.LaneReply(pull=pb.PullResponse(), array_bytes=[8]), b"12345678")[:-3],
    ):
        _, lane = serve(answer, hangs_up=True)
        with pytest.raises(PeerUnreachable):
            lane.start(pull(), soon()).finish(soon())


@pytest.mark.parametrize(
    ("lengths", "body"),
    [([8], b"1234"), ([4, 4], b"12345678"), ([], b""), ([], b"1234"), ([-8, 16], b"12345678")],
)
def test_a_reply_with_other_arrays_than_asked_for_is_refused(serve, lengths, body):
    _, lane = serve(frame(pb.LaneReply(pull=pb.PullResponse(), array_bytes=lengths), body))
    with pytest.raises(MalformedArray):
        lane.start(pull(), soon()).finish(soon())


def test_a_connection_is_used_again_after_a_whole_reply_only(serve):
    answer = frame(pb.LaneReply(error=pb.LaneError(code="malformed_array", message="no")))
    server, lane = serve(answer)
    with pytest.raises(MalformedArray, match=r"^no$"):
        lane.start(pull(), soon()).finish(soon())
    lane.start(pull(), soon()).abandon()
    assert len(server.connections) == 1
    lane.start(pull(), soon()).abandon()
    assert len(server.connections) == 2


def test_a_request_above_the_server_s_limit_is_not_sent(serve):
    server, lane = serve(None)
    call = DataCall(pb.PullRequest(), [np.zeros(1 << 18, np.int64)])
    with pytest.raises(MessageTooLarge, match="server's limit"):
        lane.start(call, soon())
    assert not server.connections


def test_a_port_that_takes_no_connections_is_no_lane():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    lane = Lane("127.0.0.1:1", pb.NegotiateResponse(lane_port=port, max_message_bytes=1 << 20))
    with pytest.raises(LaneClosed):
        lane.start(pull(), soon())
