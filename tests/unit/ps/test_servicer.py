import threading

from megalith.protos import parameter_server_pb2 as pb
from megalith.ps.servicer import ParameterServicer
from megalith.ps.store.store import Store
from megalith.runtime.lane.settings import LaneSettings
from megalith.wire.budget import ByteBudget


class HeldData:
    """A data plane whose pulls end when told to."""

    def __init__(self):
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def pull(self, request, keys, reserve):
        self.begun.release()
        assert self.go.acquire(timeout=30)
        return pb.PullResponse(), []


def test_unary_requests_beyond_the_bytes_in_flight_wait_for_those_before_them():
    data, budget = HeldData(), ByteBudget(100)
    servicer = ParameterServicer(0, Store(0), data, budget, ByteBudget(100), LaneSettings())
    request = pb.PullRequest(tables=[pb.TableIds(table="t", ids=bytes(64))])
    calls = [threading.Thread(target=servicer.Pull, args=(request, None)) for _ in range(2)]
    for call in calls:
        call.start()
    assert data.begun.acquire(timeout=30)
    assert not data.begun.acquire(timeout=0.1)  # the second finds no room
    assert budget.held_bytes == request.ByteSize()
    data.go.release()
    assert data.begun.acquire(timeout=30)
    data.go.release()
    for call in calls:
        call.join(30)
    assert budget.held_bytes == 0
