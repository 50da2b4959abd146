import pytest

from megalith.control.status import cluster_status
from megalith.protos import coordination_pb2


def heard(is_ready, staleness_s, silent_s):
    report = coordination_pb2.ReplicaReport(is_ready=is_ready, staleness_s=staleness_s)
    message = coordination_pb2.ReplicaStatus(report=report, silent_s=silent_s)
    reply = coordination_pb2.GetStatusResponse(replicas=[message])
    return cluster_status(reply).replicas[0]


def test_the_staleness_of_a_replica_grows_while_it_is_not_heard():
    replica = heard(is_ready=True, staleness_s=0.1, silent_s=8.0)
    assert replica.report.staleness_s == pytest.approx(8.1)
    assert replica.silent_s == 8.0


def test_a_replica_that_has_not_had_everything_has_no_staleness():
    assert heard(is_ready=False, staleness_s=0.0, silent_s=8.0).report.staleness_s == 0
