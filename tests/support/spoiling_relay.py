"""A stand-in for a ps on the way to a replica, which spoils some messages of the stream."""

from concurrent.futures import ThreadPoolExecutor

import grpc

from megalith.protos import replication_pb2_grpc
from support.waiting import LIMIT_S


class SpoilingRelay(replication_pb2_grpc.ReplicationServicer):
    """Passes the streams of replicas on to a ps.

    While `spoil` is set, each message to a replica goes through it: it changes the message and
    returns true, and is then forgotten.
    """

    def __init__(self, target):
        self.spoil = None
        self.spoiled = 0
        self._channel = grpc.insecure_channel(target)
        self._stub = replication_pb2_grpc.ReplicationStub(self._channel)
        self._server = grpc.server(ThreadPoolExecutor(8))
        replication_pb2_grpc.add_ReplicationServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        assert self._server.stop(0).wait(LIMIT_S)
        self._channel.close()

    def Follow(self, requests, context):
        call = self._stub.Follow(_until_it_breaks(requests))
        context.add_callback(call.cancel)
        try:
            for message in call:
                spoil = self.spoil
                if spoil is not None and spoil(message):
                    self.spoil = None
                    self.spoiled += 1
                yield message
        except grpc.RpcError:
            return  # the replica has gone


def _until_it_breaks(requests):
    try:
        yield from requests
    except grpc.RpcError:
        return
