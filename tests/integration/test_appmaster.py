"""The AppMaster over a real socket, in front of a real job."""

import errno
import json
import threading
import urllib.request
from contextlib import closing

import grpc
import pytest

from megalith.client import errors
from megalith.control import AppMaster, SupervisedProcess
from megalith.controller.members import journal_file
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
        wait_until(
            lambda: servers.job.training_status() > 2, 100
        )  # kernels may have to be compiled
        yield servers


@pytest.fixture
def appmaster(servers):
    return servers.start_appmaster()


@pytest.fixture
def stub(appmaster):
    with open_channel(appmaster.address) as channel:
        yield appmaster_pb2_grpc.AppMasterServiceStub(channel)


@pytest.fixture
def operator(servers, appmaster):
    master = AppMaster(None, str(servers.model_dir), 10.0)
    yield master
    master.close()


def test_all_fifteen_calls_answer_what_is_so(stub, servers, tmp_path):
    def call(name, request):
        asked.add(name)
        return getattr(stub, name)(request, timeout=30)

    asked = set()
    members = servers.job.status().members
    addresses = [member.address for member in members if member.role == "ps"]

    assert call("ponyHeartbeat", pb.PonyHeartbeatRequest()).state == pb.RUNNING
    assert list(call("ponyGetPSInfo", pb.PonyGetPSInfoRequest()).ps_info) == [
        pb.PSInfo(ip="127.0.0.1", ports=[port_of(address)], shard_id=index, name=f"ps-{index}")
        for index, address in enumerate(addresses)
    ]
    assert call("ponyStartWorker", pb.PonyStartWorkerRequest()) == pb.PonyStartWorkerResponse()
    assert call("progress", pb.ProgressRequest()).progress == 0  # the job is endless
    assert not call("isStarving", pb.StarvingRequest()).starving
    status = call("status", pb.StatusRequest())
    assert (status.final_status, status.track_url) == ("UNDEFINED", servers.controller.address)
    assert status.app_id
    assert call("getTaskTimePoint", pb.TaskTimePointRequest()).time_point == ""  # no data times

    not_suspended = call("suspendStatus", pb.SuspendStatusRequest())
    assert (not_suspended.succeed, not_suspended.message) == (False, "training is not suspended")
    assert call("suspend", pb.SuspendRequest(snapshot_id=3)) == pb.SuspendResponse()
    suspended = wait_until(
        lambda: (now := call("suspendStatus", pb.SuspendStatusRequest())).succeed and now
    )
    assert suspended.message == "every connected worker is blocked"
    step = servers.job.training_status()
    assert call("resume", pb.ResumeRequest()) == pb.ResumeResponse()
    assert call("suspendStatus", pb.SuspendStatusRequest()) == not_suspended
    wait_until(lambda: servers.job.training_status() > step)

    created = call("createSavepoint", pb.CreateSavepointRequest(savepoint_dir=str(tmp_path / "s")))
    assert (created.code, created.message) == (0, "")
    ask = pb.CreateSavepointStatusRequest(savepoint_restore_id=created.savepoint_id)
    saved = wait_until(
        lambda: (
            (now := call("createSavepointStatus", ask)).create_savepoint_state >= STATE.SUCCEEDED
            and now
        )
    )
    assert (saved.code, saved.create_savepoint_state) == (0, STATE.SUCCEEDED)
    snapshot = call("getSnapshot", pb.GetSnapshotRequest(snapshot_id=int(created.savepoint_id)))
    assert snapshot == pb.GetSnapshotResponse(available=True, dir=saved.message)
    assert call("getSnapshot", pb.GetSnapshotRequest(snapshot_id=99)) == pb.GetSnapshotResponse()

    assert call("succeed", pb.SucceedRequest()) == pb.SucceedResponse()
    assert call("status", pb.StatusRequest()).final_status == "SUCCEEDED"
    assert call("ponyHeartbeat", pb.PonyHeartbeatRequest()).state == pb.FINISH
    with pytest.raises(grpc.RpcError, match="has ended: SUCCEEDED") as raised:
        call("kill", pb.KillRequest())
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    methods = pb.DESCRIPTOR.services_by_name["AppMasterService"].methods
    assert asked == {method.name for method in methods}


def port_of(address):
    return int(address.rpartition(":")[2])


def test_the_phase_and_the_servers_are_the_cluster_s(stub, servers):
    assert stub.ponyHeartbeat(pb.PonyHeartbeatRequest(), timeout=30).state == pb.RUNNING
    found = stub.ponyGetPSInfo(pb.PonyGetPSInfoRequest(), timeout=30).ps_info
    addresses = [member.address for member in servers.job.status().members if member.role == "ps"]
    assert [f"{ps.ip}:{ps.ports[0]}" for ps in found] == addresses
    assert [ps.name for ps in found] == ["ps-0", "ps-1"]
    assert not stub.isStarving(pb.StarvingRequest(), timeout=30).starving


def test_a_savepoint_is_followed_to_its_directory(stub, tmp_path):
    target = tmp_path / "savepoints"
    created = stub.createSavepoint(pb.CreateSavepointRequest(savepoint_dir=str(target)), timeout=30)
    assert created.code == 0
    ask = pb.CreateSavepointStatusRequest(savepoint_restore_id=created.savepoint_id)
    wait_until(
        lambda: (
            stub.createSavepointStatus(ask, timeout=30).create_savepoint_state == STATE.SUCCEEDED
        )
    )
    snapshot = stub.getSnapshot(
        pb.GetSnapshotRequest(snapshot_id=int(created.savepoint_id)), timeout=30
    )
    assert snapshot.available
    assert (target / snapshot.dir.rpartition("/")[2] / "manifest.json").exists()


def test_the_pages_of_controller_and_appmaster_are_at_the_addresses_that_they_give(
    servers, operator
):
    pages = {}
    for address in (servers.job.status().metrics_address, operator.status().metrics_address):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as page:
            pages[address] = page.read().decode()

    of_controller, of_appmaster = pages.values()
    assert "megalith_barrier_placed 0.0" in of_controller
    assert "megalith_app_ended 0.0" in of_appmaster


def test_an_unknown_savepoint_is_not_found(stub):
    with pytest.raises(grpc.RpcError) as raised:
        stub.createSavepointStatus(
            pb.CreateSavepointStatusRequest(savepoint_restore_id="77"), timeout=30
        )
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_suspend_holds_training_until_resume(stub, servers):
    stub.suspend(pb.SuspendRequest(snapshot_id=1), timeout=30)
    stub.suspend(pb.SuspendRequest(snapshot_id=1), timeout=30)
    wait_until(lambda: stub.suspendStatus(pb.SuspendStatusRequest(), timeout=30).succeed)
    step = servers.job.training_status()
    stub.resume(pb.ResumeRequest(), timeout=30)
    wait_until(lambda: servers.job.training_status() > step)


def test_a_suspension_that_the_journal_cannot_keep_is_in_effect_and_its_status_says_so(
    stub, servers, monkeypatch
):
    def no_space(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_file, "write_atomically", no_space)
    stub.suspend(pb.SuspendRequest(snapshot_id=1), timeout=30)

    def status():
        return stub.suspendStatus(pb.SuspendStatusRequest(), timeout=30)

    wait_until(lambda: status().succeed)
    assert "the next one forgets the suspension" in status().message
    monkeypatch.undo()
    wait_until(lambda: status().message == "every connected worker is blocked")


def test_an_operator_does_not_undo_a_suspend_nor_pass_for_one(stub, servers):
    servers.job.stop()
    assert (
        stub.suspendStatus(pb.SuspendStatusRequest(), timeout=30).message
        == "training is not suspended"
    )
    stub.suspend(pb.SuspendRequest(snapshot_id=1), timeout=30)
    servers.job.resume()
    wait_until(lambda: stub.suspendStatus(pb.SuspendStatusRequest(), timeout=30).succeed)
    step = servers.job.training_status()
    stub.resume(pb.ResumeRequest(), timeout=30)
    wait_until(lambda: servers.job.training_status() > step)


@pytest.mark.parametrize(
    ("call", "status", "final"), [("kill", 1, "FAILED"), ("succeed", 0, "SUCCEEDED")]
)
def test_kill_and_succeed_end_every_process_of_the_job(stub, servers, call, status, final):
    request = (
        pb.KillRequest(exit_code=3, diagnose="enough")
        if call == "kill"
        else pb.SucceedRequest(diagnose="enough")
    )
    getattr(stub, call)(request, timeout=30)
    assert stub.status(pb.StatusRequest(), timeout=30).final_status == final
    for name in ("controller", "ps-0", "ps-1", "worker-0", "appmaster"):
        wait_until(lambda name=name: servers.exits[name].reason, what=name)
        assert "enough" in servers.exits[name].reason
    assert servers.exits["controller"].status == status


def test_an_operator_sees_the_application_and_follows_a_savepoint(operator, servers, tmp_path):
    wait_until(lambda: operator.status().phase == "running")
    shown = operator.status()
    assert (shown.app_id, shown.final_status, shown.processes) == (
        "megalith-local",
        "UNDEFINED",
        (),
    )
    assert shown.controller == servers.controller.address
    operator.suspend()
    operator.resume()
    saved = operator.wait_for_savepoint(operator.create_savepoint(str(tmp_path / "there")), 30)
    assert saved.state == "succeeded"
    assert operator.status().savepoints == (saved,)
    with pytest.raises(errors.NotFound, match="no savepoint '9'"):
        operator.savepoint("9")


def test_a_second_savepoint_is_refused_while_one_is_written(operator, servers, monkeypatch):
    may_end = threading.Event()
    save = servers.controller._saver.save

    def slow_save(*arguments, **options):
        assert may_end.wait(20)
        return save(*arguments, **options)

    monkeypatch.setattr(servers.controller._saver, "save", slow_save)
    first = operator.create_savepoint()
    with pytest.raises(errors.SavepointRefused, match=f"savepoint {first} is"):
        operator.create_savepoint()
    wait_until(lambda: operator.savepoint(first).state == "running")
    with pytest.raises(errors.DeadlinePassed, match=f"savepoint {first} is running after 0 s"):
        operator.wait_for_savepoint(first, 0)
    may_end.set()
    assert operator.wait_for_savepoint(first, 30).state == "succeeded"


def test_a_restarted_appmaster_remembers_policy_and_savepoints(operator, appmaster, servers):
    saved = operator.wait_for_savepoint(operator.create_savepoint(), 30)
    operator.set_max_restarts(4)
    appmaster.stop(0.5)
    servers.start_appmaster()
    shown = operator.status()
    assert (shown.max_restarts, shown.savepoints) == (4, (saved,))


def test_an_application_that_ended_is_not_run_again_under_its_id(operator, appmaster, servers):
    operator.kill("enough", exit_code=3)
    shown = operator.status()
    assert (shown.final_status, shown.exit_code, shown.reason) == ("FAILED", 3, "enough")
    with pytest.raises(errors.ApplicationEnded, match="has ended: FAILED, enough"):
        operator.succeed()
    with pytest.raises(errors.SavepointRefused, match="the application has ended"):
        operator.create_savepoint()
    appmaster.stop(0.5)
    with pytest.raises(errors.ApplicationEnded, match="give the next job another --app-id"):
        servers.start_appmaster()
    servers.start_appmaster(app_id="the-next-one")


@pytest.mark.parametrize(
    "section",
    [
        {"ending": {"reason": "enough"}},
        {"ending": {"succeeded": "yes", "reason": "enough"}},
        {"ending": {"succeeded": True, "reason": "enough", "grace": 3}},
        {"supervision": {"max_restarts": "many"}},
        {"supervision": {"max_restarts": -1}},
        {"savepoints": {"all": 3}},
        {"savepoints": {"all": ["1"]}},
        {"savepoints": {"all": [{"id": "1", "state": "lost", "path": "", "message": ""}]}},
        {"savepoints": {"all": [{"id": 1, "state": "failed", "path": "", "message": ""}]}},
    ],
)
def test_a_state_file_of_valid_json_with_nonsense_in_it_is_kept_aside_and_the_appmaster_starts(
    tmp_path, caplog, section
):
    path = tmp_path / "appmaster_state.json"
    path.write_text(json.dumps({"app_id": "app", "savepoints": {"all": []}, **section}))
    with Servers(tmp_path) as servers:
        servers.start_controller()
        servers.start_appmaster(app_id="app")
        with closing(AppMaster(None, str(tmp_path), 30)) as operator:
            seen = operator.status()
    assert (seen.final_status, seen.max_restarts, seen.savepoints) == ("UNDEFINED", 0, ())
    assert "cannot read the state, starting without it" in caplog.text
    assert path.with_name("appmaster_state.json.damaged").exists()


def test_two_appmasters_are_kept_apart_by_state_and_by_port(servers, appmaster, tmp_path):
    with pytest.raises(errors.AppMasterRunning, match="a live AppMaster keeps its state there"):
        servers.start_appmaster()
    port = int(appmaster.address.rpartition(":")[2])
    with pytest.raises(errors.InvalidSetting, match=f"--port={port}: cannot listen"):
        servers.start_appmaster(port=port, state_file=str(tmp_path / "other.json"))


def test_malformed_heart_beats_are_refused_and_the_next_good_one_is_taken(operator):
    twice = SupervisedProcess("ps-0", 1, 1, True)
    with pytest.raises(errors.InvalidRequest, match="process ps-0 occurs 2 times"):
        operator.supervise([twice, twice])
    with pytest.raises(errors.InvalidRequest, match="max_restarts=-1: below 0"):
        operator.set_max_restarts(-1)
    assert not operator.status().is_supervised
    assert operator.supervise([SupervisedProcess("ps-0", 1, 1, False, -9)]).start == ()
    assert operator.status().is_supervised


def test_a_killed_job_ends_although_its_controller_is_gone_if_somebody_supervises(
    operator, servers
):
    wait_until(lambda: operator.status().phase == "running")
    servers.controller.stop(0)
    with pytest.raises(errors.Unavailable):
        operator.kill("hung")
    operator.supervise([SupervisedProcess("controller", 1, 1, False, -9)])
    operator.kill("hung", grace_s=7)
    verdict = operator.supervise([SupervisedProcess("controller", 1, 1, False, -9)])
    assert (verdict.is_over, verdict.succeeded, verdict.reason, verdict.grace_s) == (
        True,
        False,
        "hung",
        7.0,
    )


def test_an_appmaster_stays_until_its_supervisor_has_heard_of_the_end(operator, servers):
    processes = [SupervisedProcess("ps-0", 1, 1, True)]
    operator.supervise(processes)
    operator.kill("enough")
    exit_request = servers.exits["appmaster"]
    wait_until(lambda: exit_request.is_work_done)  # from here on it only lingers, for 0 s
    leaving = threading.Thread(target=exit_request.wait, daemon=True)
    leaving.start()
    leaving.join(0.5)
    assert leaving.is_alive()
    verdict = operator.supervise(processes)
    assert (verdict.is_over, verdict.reason) == (True, "enough")
    leaving.join(60)
    assert not leaving.is_alive()
