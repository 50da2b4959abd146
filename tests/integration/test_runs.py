"""A client belongs to the run that it first connected to.

The rows of another run are not its to touch.
"""

import numpy as np
import pytest

from megalith.client import Segment, Sgd, TableConfig, connect
from megalith.control import Controller
from megalith.controller.config import ControllerServerSettings
from megalith.errors import WrongRun
from megalith.protos import parameter_server_pb2 as pb
from megalith.protos import parameter_server_pb2_grpc
from megalith.runner.free_ports import free_ports
from megalith.runtime.rpc.server import ServerSettings
from megalith.wire.channel import open_channel
from megalith.wire.status import translated
from support.servers import GRACE_S, Servers
from support.waiting import wait_until

TABLE = TableConfig("t", (Segment(1, optimizer=Sgd(1.0)),))
PUSH = {"t": ([1], np.full((1, 1), -100.0, np.float32))}
LANES = pytest.mark.parametrize("bulk_lane", [True, False], ids=["lane", "unary"])


def row(cluster):
    return float(cluster.pull({"t": [1]}).rows["t"][0, 0])


@LANES
def test_a_client_whose_ps_ended_does_not_train_the_job_that_got_its_port(tmp_path, bulk_lane):
    (port,) = free_ports(1)  # which the system gives to nobody between the two servers
    with Servers(tmp_path / "a") as a, Servers(tmp_path / "b") as b:
        a.start_controller()
        ended = a.start_ps(0, server=ServerSettings(port=port))
        client = a.connect(timeout_s=10, bulk_lane=bulk_lane)
        client.create_tables(TABLE)
        client.push(PUSH)
        ended.stop(GRACE_S)
        b.start_controller()
        b.start_ps(0, server=ServerSettings(port=port))
        owner = b.connect()
        owner.create_tables(TABLE)
        with pytest.raises(WrongRun, match="close the client and connect again"):
            client.push(PUSH)
        with pytest.raises(WrongRun):
            client.pull({"t": [1]})
        assert row(owner) == 0


@LANES
def test_a_client_that_was_given_an_address_does_not_go_on_with_the_next_job_there(
    tmp_path, bulk_lane
):
    (port,) = free_ports(1)  # which the system gives to nobody between the two controllers
    same_port = ControllerServerSettings(port=port, metrics_port=0)
    with Servers(tmp_path / "a") as a, Servers(tmp_path / "b") as b:
        controller = a.start_controller(server=same_port)
        ended = a.start_ps(0)
        with connect(controller.address, timeout_s=10, bulk_lane=bulk_lane) as client:
            client.create_tables(TABLE)
            client.push(PUSH)
            ended.stop(GRACE_S)
            controller.stop(GRACE_S)
            b.start_controller(server=same_port)
            b.start_ps(0)
            owner = b.connect()
            owner.create_tables(TABLE)
            with pytest.raises(WrongRun, match="the controller is in run"):
                client.push(PUSH)
            with pytest.raises(WrongRun):
                client.table_stats()
            assert row(owner) == 0
        with connect(controller.address, timeout_s=10) as again:
            again.push(PUSH)
        assert row(owner) == 100


REQUESTS = {
    "CreateTables": pb.CreateTablesRequest(),
    "CreateVariables": pb.CreateVariablesRequest(),
    "DescribeVariables": pb.DescribeVariablesRequest(),
    "Pull": pb.PullRequest(),
    "Push": pb.PushRequest(client_id="c", sequence=1),
    "AssignRows": pb.AssignRowsRequest(client_id="c", sequence=1),
    "ReinitializeRows": pb.ReinitializeRowsRequest(client_id="c", sequence=1),
    "Negotiate": pb.NegotiateRequest(),
    "Expire": pb.ExpireRequest(),
    "PutBlob": pb.PutBlobRequest(name="b"),
    "GetBlob": pb.GetBlobRequest(name="b"),
    "ListBlobs": pb.ListBlobsRequest(),
    "DropBlob": pb.DropBlobRequest(name="b"),
}


def test_every_request_of_another_run_or_of_none_is_refused(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_all()
        routing = servers.connect().controller.routing()
        with open_channel(routing.addresses[0]) as channel:
            stub = parameter_server_pb2_grpc.ParameterServerStub(channel)
            for method, request in REQUESTS.items():
                if "epoch" in request.DESCRIPTOR.fields_by_name:
                    request.epoch = routing.epoch
                for run_id in ("", "0123"):
                    request.run_id = run_id
                    with pytest.raises(WrongRun), translated("ps-0"):
                        getattr(stub, method)(request, timeout=30)
            with pytest.raises(WrongRun), translated("ps-0"):
                stub.GetPsStatus(pb.GetPsStatusRequest(run_id="0123"), timeout=30)
            assert stub.GetPsStatus(pb.GetPsStatusRequest(), timeout=30).run_id == routing.run_id


def test_holds_outlive_a_controller_that_is_told_to_stop_before_anybody_is_back(tmp_path):
    with Servers(tmp_path) as servers:
        first = servers.start_controller()
        ps = servers.start_ps(0)
        job = Controller(None, str(tmp_path), 10.0)
        wait_until(lambda: job.status().phase == "running")
        job.stop(reason="look at the data")
        first.stop(0)
        ps.stop(0)
        second = servers.start_controller(suspect_s=600.0)
        second.stop(0)
        servers.start_controller(suspect_s=600.0)
        assert [holder.reason for holder in job.status().barrier.holders] == ["look at the data"]


def test_a_controller_that_nobody_ever_joined_leaves_no_journal(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_controller().stop(0)
        assert not (tmp_path / "controller_state.json").exists()
