"""Golden G28, test1 and test2: a job of one step, looked at while its ps stay, and one whose first
step times out."""

import numpy as np
import pytest

from megalith.errors import DeadlinePassed, PeerUnreachable
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.wire.channel import open_channel
from support.servers import Servers
from support.waiting import wait_until

TASK = "support.one_step:make_task"


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        yield servers


@pytest.mark.golden("G28")
def test_ps_that_stay_after_one_step_can_be_looked_at(servers):
    servers.start_controller()
    ps = servers.start_ps(0)
    servers.start_worker(0, task=TASK)
    cluster = servers.connect()
    wait_until(lambda: cluster.controller.status().outcome == "succeeded", 100)
    assert cluster.pull(variables=["global_step"]).variables["global_step"] == 1
    np.testing.assert_array_equal(
        cluster.pull({"feature": [0, 1, 2]}).rows["feature"], [[-1] * 5, [-1] * 5, [0] * 5]
    )
    with open_channel(ps.address) as channel:
        status = parameter_server_pb2_grpc.ParameterServerStub(channel).GetPsStatus(
            pb.GetPsStatusRequest()
        )
    assert [(table.config.name, table.rows) for table in status.tables] == [("feature", 2)]


@pytest.mark.golden("G28")
def test_a_first_step_that_times_out_is_taken_again(servers, monkeypatch):
    servers.start_controller()
    worker, worker_exit = servers.start_worker(0, task=TASK), servers.exits["worker-0"]
    monkeypatch.setattr(worker._training._failover, "_wait_s", 0.1)
    taught, tries = worker._training._learn, []

    def times_out_once(*step):
        tries.append(1)
        if len(tries) == 1:
            raise DeadlinePassed("the step took too long")
        return taught(*step)

    monkeypatch.setattr(worker._training, "_learn", times_out_once)
    servers.start_ps(0)  # no step is taken before
    job = servers.connect().controller
    status = wait_until(lambda: (status := job.status()).outcome and status, 100)
    assert (status.outcome, status.global_step, len(tries)) == ("succeeded", 1, 2)
    wait_until(lambda: worker_exit.reason)
    assert worker_exit.status == 0


@pytest.mark.parametrize("call", ["create_tables", "pull"])
def test_servers_that_are_away_while_the_chief_creates_or_evaluates_are_met_again(
    servers, monkeypatch, call
):
    servers.start_controller()
    worker, worker_exit = servers.start_worker(0, task=TASK), servers.exits["worker-0"]
    monkeypatch.setattr(worker._training._failover, "_wait_s", 0.1)
    real, tries = getattr(worker._cluster, call), []

    def away_once(*arguments, **options):
        tries.append(1)
        if len(tries) == 1:
            raise PeerUnreachable("nobody at ps-0")
        return real(*arguments, **options)

    if call == "pull":  # rows that only the evaluation asks for
        monkeypatch.setattr(
            worker._training._task, "evaluate", lambda read: read({"feature": [0]}, ()) and {}
        )
        monkeypatch.setattr(worker._chief, "_read", away_once)
    else:
        monkeypatch.setattr(worker._cluster, call, away_once)
    servers.start_ps(0)  # nothing is created before
    job = servers.connect().controller
    status = wait_until(lambda: (status := job.status()).outcome and status, 100)
    assert (status.outcome, status.global_step, len(tries)) == ("succeeded", 1, 2)
    wait_until(lambda: worker_exit.reason)
    assert worker_exit.status == 0
