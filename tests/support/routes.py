"""Which parameter server has which ids, as clients are told."""

from megalith.protos import coordination_pb2, coordination_pb2_grpc
from megalith.wire import codec
from megalith.wire.channel import open_channel


def routing_of(job):
    """The newest map of a job."""
    with open_channel(job.status().address) as channel:
        coordination = coordination_pb2_grpc.CoordinationStub(channel)
        reply = coordination.GetRouting(coordination_pb2.GetRoutingRequest(), timeout=30)
    return codec.routing_from_proto(reply.routing)
