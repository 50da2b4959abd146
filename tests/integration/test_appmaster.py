"""The AppMaster mock over a real socket, in front of a real job."""

import grpc
import pytest

from megalith.protos import appmaster_pb2 as pb
from megalith.protos import appmaster_pb2_grpc
from megalith.wire.channel import open_channel
from support.servers import Servers
from support.waiting import wait_until

STATE = pb.CreateSavepointStatusResponse


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path, num_ps=2, num_workers=1, stay_up=False) as servers:
        servers.start_all(batch_size=64, num_examples=0)
        servers.job = servers.connect().controller
        wait_until(lambda: servers.job.training_status() > 2, 100)  # kernels may have to be compiled
        yield servers


@pytest.fixture
def stub(servers):
    server = servers.start_appmaster()
    with open_channel(server.address) as channel:
        yield appmaster_pb2_grpc.AppMasterServiceStub(channel)


def test_all_fifteen_calls_answer(stub):
    requests = {
        "ponyHeartbeat": pb.PonyHeartbeatRequest(),
        "ponyGetPSInfo": pb.PonyGetPSInfoRequest(),
        "ponyStartWorker": pb.PonyStartWorkerRequest(),
        "suspend": pb.SuspendRequest(),
        "suspendStatus": pb.SuspendStatusRequest(),
        "resume": pb.ResumeRequest(),
        "getSnapshot": pb.GetSnapshotRequest(),
        "progress": pb.ProgressRequest(),
        "isStarving": pb.StarvingRequest(),
        "status": pb.StatusRequest(),
        "getTaskTimePoint": pb.TaskTimePointRequest(),
        "createSavepoint": pb.CreateSavepointRequest(),
        "createSavepointStatus": pb.CreateSavepointStatusRequest(savepoint_restore_id="1"),
        "succeed": pb.SucceedRequest(),
        "kill": pb.KillRequest(),
    }
    assert set(requests) == {method.name for method in pb.DESCRIPTOR.services_by_name["AppMasterService"].methods}
    for name, request in requests.items():
        getattr(stub, name)(request, timeout=10)


def test_the_phase_and_the_servers_are_the_cluster_s(stub, servers):
    assert stub.ponyHeartbeat(pb.PonyHeartbeatRequest(), timeout=10).state == pb.RUNNING
    found = stub.ponyGetPSInfo(pb.PonyGetPSInfoRequest(), timeout=10).ps_info
    addresses = [member.address for member in servers.job.status().members if member.role == "ps"]
    assert [f"{ps.ip}:{ps.ports[0]}" for ps in found] == addresses
    assert [ps.name for ps in found] == ["ps-0", "ps-1"]
    assert not stub.isStarving(pb.StarvingRequest(), timeout=10).starving


def test_a_savepoint_is_followed_to_its_directory(stub, tmp_path):
    target = tmp_path / "savepoints"
    created = stub.createSavepoint(pb.CreateSavepointRequest(savepoint_dir=str(target)), timeout=10)
    assert created.code == 0
    ask = pb.CreateSavepointStatusRequest(savepoint_restore_id=created.savepoint_id)
    wait_until(lambda: stub.createSavepointStatus(ask, timeout=10).create_savepoint_state == STATE.SUCCEEDED, 20)
    snapshot = stub.getSnapshot(pb.GetSnapshotRequest(snapshot_id=int(created.savepoint_id)), timeout=10)
    assert snapshot.available
    assert (target / snapshot.dir.rpartition("/")[2] / "manifest.json").exists()


def test_an_unknown_savepoint_is_not_found(stub):
    with pytest.raises(grpc.RpcError) as raised:
        stub.createSavepointStatus(pb.CreateSavepointStatusRequest(savepoint_restore_id="77"), timeout=10)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_suspend_holds_training_until_resume(stub, servers):
    stub.suspend(pb.SuspendRequest(snapshot_id=1), timeout=10)
    stub.suspend(pb.SuspendRequest(snapshot_id=1), timeout=10)
    wait_until(lambda: stub.suspendStatus(pb.SuspendStatusRequest(), timeout=10).succeed, 5)
    step = servers.job.training_status()
    stub.resume(pb.ResumeRequest(), timeout=10)
    wait_until(lambda: servers.job.training_status() > step)


@pytest.mark.parametrize(("call", "status", "final"), [("kill", 1, "FAILED"), ("succeed", 0, "SUCCEEDED")])
def test_kill_and_succeed_end_every_process_of_the_job(stub, servers, call, status, final):
    request = pb.KillRequest(exit_code=3, diagnose="enough") if call == "kill" else pb.SucceedRequest(diagnose="enough")
    getattr(stub, call)(request, timeout=10)
    assert stub.status(pb.StatusRequest(), timeout=10).final_status == final
    for name in ("controller", "ps-0", "ps-1", "worker-0", "appmaster"):
        wait_until(lambda name=name: servers.exits[name].reason, 10, name)
        assert "enough" in servers.exits[name].reason
    assert servers.exits["controller"].status == status
