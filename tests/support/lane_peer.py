"""A connection of the bulk lane as a client in any language opens it."""

import socket
import struct

from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire import frames
from megalith.wire.channel import open_channel


def negotiate(servers):
    """The terms of ps-0."""
    routing = servers.connect().controller.routing()
    with open_channel(routing.addresses[0]) as channel:
        stub = parameter_server_pb2_grpc.ParameterServerStub(channel)
        return stub.Negotiate(pb.NegotiateRequest(run_id=routing.run_id), timeout=30)


def connect(address, terms, hello=True):
    """A socket that has been greeted, or with `hello=False` one that has said nothing."""
    sock = socket.create_connection((address.rpartition(":")[0].strip("[]"), terms.lane_port), 10)
    frames.prepare(sock)
    frames.set_timeout(sock, 30)
    if hello:
        frames.send(sock, pb.LaneHello(token=terms.lane_token).SerializeToString())
        assert reply(sock) == pb.LaneReply()
    return sock


def start(head, body_bytes):
    """What stands before head and body of a frame."""
    return struct.pack("<4sIQ", frames.MAGIC, len(head), body_bytes) + head


def reply(sock):
    sizes = frames.receive_sizes(sock)
    if sizes is None:
        return None
    head, body = bytearray(sizes.head), bytearray(sizes.body)
    frames.receive_into(sock, memoryview(head))
    frames.receive_into(sock, memoryview(body))
    return pb.LaneReply.FromString(bytes(head))
