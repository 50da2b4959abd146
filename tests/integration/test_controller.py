"""Membership, the five public calls and saves, against real servers in one process."""

import errno
import os
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.restoring import restore
from megalith.cli.app import app as cli_app
from megalith.client import Segment, Sgd, TableConfig, Zeros, connect, errors
from megalith.control import address_file
from megalith.controller.members import job_files, journal_file
from megalith.discovery import liveness
from megalith.protos import controller_pb2, coordination_pb2_grpc
from megalith.protos.parameter_server_pb2 import GetPsStatusRequest
from megalith.protos.parameter_server_pb2_grpc import ParameterServerStub
from megalith.runner.free_ports import free_ports
from megalith.runtime.rpc.server import ServerSettings
from megalith.wire.channel import open_channel
from support.servers import Servers
from support.waiting import wait_until

TASK = {"batch_size": 64, "num_examples": 0}
CYCLES = int(os.environ.get("MEGALITH_TEST_STOP_CYCLES", "20"))


@pytest.fixture
def training(tmp_path):
    """Two ps and two workers that train until stopped."""
    with Servers(tmp_path, num_ps=2, num_workers=2) as servers:
        servers.start_all(**TASK)
        servers.job = servers.connect().controller
        wait_until(
            lambda: servers.job.training_status() > 5, 100
        )  # kernels may have to be compiled
        yield servers


def raw(servers, method, response=None):
    """A public call as a client of Monolith makes it: an empty message to /Controller/<method>."""
    with open_channel(servers.controller.address) as channel:
        call = channel.unary_unary(f"/Controller/{method}", lambda _: b"", lambda data: data)
        data = call(None, timeout=30)
        return response.FromString(data) if response else data


def test_the_five_calls_as_raw_methods_with_empty_messages(training):
    assert raw(training, "StopTraining") == b""
    with pytest.raises(grpc.RpcError) as second:
        raw(training, "StopTraining")
    assert second.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert second.value.details() == "Barrier is placed already."
    wait_until(
        lambda: (
            not raw(
                training, "GetBlockStatus", controller_pb2.GetBlockStatusResponse
            ).unblocked_indices
        )
    )
    step = raw(training, "GetTrainingStatus", controller_pb2.GetTrainingStatusResponse).global_step
    assert raw(training, "SaveCheckpoint") == b""
    assert training.job.status().last_checkpoint.endswith(f"model.ckpt-{step}")
    assert (
        raw(training, "GetTrainingStatus", controller_pb2.GetTrainingStatusResponse).global_step
        == step
    )
    assert raw(training, "ResumeTraining") == b""
    assert raw(training, "ResumeTraining") == b""
    wait_until(lambda: training.job.training_status() > step)


@pytest.mark.golden("G29")
def test_stop_status_resume_and_save_of_a_job_with_one_worker(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        servers.start_all(**TASK)
        job = servers.connect().controller
        wait_until(lambda: job.training_status() > 0, 100)

        def blocked():
            return list(
                raw(
                    servers, "GetBlockStatus", controller_pb2.GetBlockStatusResponse
                ).blocked_indices
            )

        assert raw(servers, "StopTraining") == b""
        with pytest.raises(grpc.RpcError):
            raw(servers, "StopTraining")
        wait_until(lambda: blocked() == [0])
        assert raw(servers, "ResumeTraining") == b""
        wait_until(lambda: blocked() == [])
        assert raw(servers, "SaveCheckpoint") == b""
        assert (
            raw(servers, "GetTrainingStatus", controller_pb2.GetTrainingStatusResponse).global_step
            > 0
        )


@pytest.mark.golden("G2")
def test_a_server_says_where_it_listens(tmp_path):
    with Servers(tmp_path) as servers:
        address = servers.start_controller().address
        assert liveness.probe([address]).are_all_alive


def rows_held(job):
    """Rows on each ps as it says itself: the controller's status is as old as the last report."""
    held = []
    for member in job.status().members:
        if member.role == "ps":
            with open_channel(member.address) as channel:
                status = ParameterServerStub(channel).GetPsStatus(GetPsStatusRequest())
            held.append(sum(table.rows for table in status.tables))
    return held


def test_stop_blocks_every_worker_and_nothing_moves_until_resume(training):
    training.job.stop()
    wait_until(lambda: training.job.block_status() == ([0, 1], []))
    rows = rows_held(training.job)
    step = training.job.training_status()
    pulled = training.connect().pull(variables=["global_step"])
    assert pulled.variables["global_step"] == step
    assert rows_held(training.job) == rows
    training.job.resume()
    wait_until(lambda: training.job.block_status() == ([], [0, 1]))
    wait_until(lambda: training.job.training_status() > step)


def no_space(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_whoever_stops_training_is_told_if_the_journal_cannot_keep_it(tmp_path, monkeypatch):
    with Servers(tmp_path) as servers:
        servers.start_controller()
        monkeypatch.setattr(journal_file, "write_atomically", no_space)
        stopped = CliRunner().invoke(cli_app, ["ctl", "--model-dir", str(tmp_path), "stop"])
        assert "training is held\n" in stopped.stdout
        assert "No space left on device" in stopped.stdout
        assert "the next one forgets a stop of training" in stopped.stdout


def test_a_stop_that_the_journal_cannot_keep_is_in_effect_and_the_status_says_so(
    tmp_path, monkeypatch
):

    with Servers(tmp_path) as servers:
        servers.start_controller()
        servers.start_ps(0)
        cluster = servers.connect()
        assert cluster.controller.status().journal_error == ""
        monkeypatch.setattr(journal_file, "write_atomically", no_space)
        cluster.controller.stop()
        status = cluster.controller.status()
        assert status.is_stopped
        assert status.journal_error == f"{tmp_path / job_files.JOURNAL}: No space left on device"
        monkeypatch.undo()
        wait_until(lambda: cluster.controller.status().journal_error == "")


def test_a_second_stop_keeps_its_error_class_through_the_sdk(training):
    training.job.stop()
    with pytest.raises(errors.BarrierAlreadyPlaced, match=r"Barrier is placed already\."):
        training.job.stop()


def test_stops_and_resumes_leave_no_worker_stuck(training):
    for _ in range(CYCLES):
        training.job.stop()
        wait_until(lambda: training.job.block_status()[1] == [])
        step = training.job.training_status()
        training.job.resume()
        wait_until(lambda before=step: training.job.training_status() > before)


def test_a_job_trains_to_its_end_and_leaves_a_checkpoint_and_results(tmp_path):
    with Servers(tmp_path, num_ps=2, num_workers=2) as servers:
        servers.start_all(batch_size=256, num_examples=256 * 41)
        job = servers.connect().controller
        status = wait_until(lambda: (now := job.status()).outcome and now)
        assert (status.outcome, status.phase) == ("succeeded", "finished")
        assert status.global_step == 41
        assert [member.position for member in status.members if member.role == "worker"] == [21, 20]
        assert 0.5 < status.results["auc"] < status.results["best_auc"]
        assert status.last_checkpoint.endswith("model.ckpt-41")
        wait_until(lambda: servers.exits["worker-0"].reason)


def test_more_workers_than_batches_is_no_reason_to_train_on(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=3) as servers:
        servers.start_all(batch_size=64, num_examples=64)
        job = servers.connect().controller
        status = wait_until(lambda: (now := job.status()).outcome and now)
        assert (status.outcome, status.global_step) == ("succeeded", 1)


def test_the_end_of_a_job_reaches_every_member_of_a_controller_that_stays_up(training):
    training.job.end_job(False, "enough")
    for name in ("ps-0", "ps-1", "worker-0", "worker-1"):
        wait_until(lambda name=name: "enough" in training.exits[name].reason, what=name)
    assert training.job.status().outcome == "failed"
    assert training.exits["controller"].reason == ""


def test_a_client_that_outlives_its_run_is_refused_by_the_next_one_and_connects_again(tmp_path):
    table = TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),))
    with Servers(tmp_path, num_ps=2) as first:
        first.start_all()
        lasting = connect(model_dir=str(tmp_path), timeout_s=60)
        lasting.create_tables(table)
    with Servers(tmp_path, num_ps=2) as second:
        second.start_all()
        with pytest.raises(errors.WrongRun, match="connect again"):
            lasting.create_tables(table)
        lasting.close()
        again = second.connect()
        again.create_tables(table)
        again.push({"t": ([1], np.ones((1, 1), np.float32))})
        np.testing.assert_array_equal(again.pull({"t": [1]}).rows["t"], [[-1]])


def test_threads_that_share_a_controller_get_typed_errors_while_it_is_away(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_controller()
        job = servers.connect(timeout_s=3.0).controller
        job.status()
        servers.controller.stop(0)
        seen = []

        def ask():
            try:
                job.status()
            except Exception as error:
                seen.append(type(error))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(seen) <= {errors.PeerUnreachable, errors.DeadlinePassed}
        assert len(seen) == 8


def test_streams_that_say_nothing_do_not_keep_operators_out(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_controller()
        job = servers.connect().controller
        silence = threading.Event()

        def nothing():
            silence.wait(200)
            yield from ()

        with open_channel(servers.controller.address) as channel:
            stub = coordination_pb2_grpc.CoordinationStub(channel)
            streams = [stub.Session(nothing()) for _ in range(40)]
            assert job.status().phase == "forming"
            # They take no seat of a member; each is ended after --first-message-s, or sooner when
            # it is in the way.
            wait_until(lambda: all(stream.done() for stream in streams))
            assert {stream.code() for stream in streams} == {grpc.StatusCode.CANCELLED}
            assert job.status().phase == "forming"
            silence.set()


def test_a_ps_that_restores_does_not_answer_for_its_predecessor_s_map(tmp_path, monkeypatch):
    """A replacement at the same address, slow to restore: pushes wait for it and are not lost."""
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        same_port = ServerSettings(port=free_ports(1)[0])  # which nobody else gets in between
        first = servers.start_ps(0, server=same_port)
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
        cluster.push({"t": ([1], np.ones((1, 1), np.float32))})
        cluster.controller.save()
        first.stop(0)
        started, release = threading.Event(), threading.Event()
        restore_shard = restore.restore_shard

        def slowly(*arguments, **settings):
            started.set()
            release.wait(200)
            return restore_shard(*arguments, **settings)

        monkeypatch.setattr(restore, "restore_shard", slowly)
        servers.start_ps(0, server=same_port)
        assert started.wait(60)
        pushed = threading.Thread(
            target=cluster.push, args=({"t": ([1], np.full((1, 1), 5, np.float32))},)
        )
        pushed.start()
        pushed.join(0.5)
        assert pushed.is_alive()
        release.set()
        pushed.join(60)
        np.testing.assert_array_equal(cluster.pull({"t": [1]}).rows["t"], [[-6]])


def test_saves_of_a_cluster_without_workers_are_folders_of_their_own(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
        saved = []
        for value in range(1, 4):
            cluster.push({"t": (np.arange(value), np.ones((value, 1), np.float32))})
            saved.append(cluster.controller.save())
        assert [Path(each.path).name for each in saved] == [
            "model.ckpt-0",
            "model.ckpt-r1-0",
            "model.ckpt-r2-0",
        ]
        assert [manifest.read(Path(each.path)).rows for each in saved] == [1, 2, 3]
        assert cluster.controller.status().last_checkpoint == saved[-1].path


def test_a_live_index_is_not_given_away(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_all()
        wait_until(lambda: servers.connect().controller.status().phase == "running")
        first = servers.exits["ps-0"]
        servers.start_ps(0)
        wait_until(lambda: servers.exits["ps-0"].status == 1)
        assert "ps-0 is held by a live process" in servers.exits["ps-0"].reason
        assert first.reason == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"index": 3}, "outside this cluster of 1 ps"), ({"num_ps": 2}, "expects 2 ps")],
)
def test_a_ps_that_does_not_fit_the_cluster_is_refused_at_once(tmp_path, settings, message):
    with Servers(tmp_path) as servers:
        servers.start_controller()
        index = settings.pop("index", 0)
        servers.start_ps(index, **settings)
        wait_until(lambda: servers.exits[f"ps-{index}"].status == 1)
        assert message in servers.exits[f"ps-{index}"].reason


def test_a_controller_that_is_not_there_is_named_after_the_deadline(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_ps(
            0, membership=servers.membership(controller="127.0.0.1:1", join_timeout_s=0.5)
        )
        wait_until(lambda: servers.exits["ps-0"].status == 1)
        assert "no controller after" in servers.exits["ps-0"].reason
        assert "127.0.0.1:1" in servers.exits["ps-0"].reason
    with pytest.raises(errors.PeerUnreachable, match=f"no {address_file.CONTROLLER.name}"):
        connect(model_dir=str(tmp_path), timeout_s=0.2).controller.status()


def test_a_second_controller_for_a_model_dir_is_refused_with_the_first_s_address(tmp_path):
    with Servers(tmp_path) as servers:
        first = servers.start_controller()
        with pytest.raises(errors.ModelDirInUse, match=first.address):
            servers.start_controller()


def test_the_address_of_a_dead_controller_does_not_stop_a_new_one(tmp_path):
    (tmp_path / address_file.CONTROLLER.name).write_text("127.0.0.1:1")
    with Servers(tmp_path) as servers:
        controller = servers.start_controller()
        assert address_file.CONTROLLER.read(tmp_path) == controller.address
    assert address_file.CONTROLLER.read(tmp_path) is None


def test_a_restarted_controller_finds_its_members_again(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
        cluster.push({"t": ([1, 2, 3], np.ones((3, 1), np.float32))})
        epoch = cluster.controller.status().epoch
        servers.controller.stop(0.1)
        servers.start_controller()
        wait_until(lambda: cluster.controller.status().phase == "running")
        assert cluster.controller.status().epoch == epoch  # the same servers: the same map
        np.testing.assert_array_equal(
            cluster.pull({"t": [1, 2, 3, 4]}).rows["t"], [[-1], [-1], [-1], [0]]
        )


def test_a_save_without_every_ps_is_refused_and_leaves_nothing(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        servers.start_ps(0)
        with pytest.raises(errors.NotReady, match="waiting for ps-"):
            servers.connect().controller.save()
        assert list(tmp_path.glob("model.ckpt*")) == []


def test_health_follows_readiness_and_reflection_lists_the_services(tmp_path):
    with Servers(tmp_path) as servers:
        controller = servers.start_controller()
        lonely = servers.start_ps(0, membership=servers.membership(controller="127.0.0.1:1"))
        assert health(lonely.address) == "NOT_SERVING"
        assert health(controller.address) == "SERVING"
        assert reflected(controller.address) >= {
            "Controller",
            "megalith.v1.Coordination",
            "grpc.health.v1.Health",
        }
        assert "megalith.v1.ParameterServer" in reflected(lonely.address)
    with Servers(tmp_path) as servers:
        servers.start_controller()
        joined = servers.start_ps(0)
        wait_until(lambda: health(joined.address) == "SERVING")


def health(address):
    with open_channel(address) as channel:
        status = (
            health_pb2_grpc.HealthStub(channel)
            .Check(health_pb2.HealthCheckRequest(), timeout=30)
            .status
        )
        return health_pb2.HealthCheckResponse.ServingStatus.Name(status)


def reflected(address):
    with open_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=30)
        return {service.name for service in answer.list_services_response.service}


def test_a_controller_removes_what_a_killed_one_left_of_a_save_and_lists_its_first_checkpoint(
    tmp_path,
):
    left = catalog.work_directory(tmp_path, 130, "0a1b2c3d")
    left.mkdir()
    complete = catalog.work_directory(tmp_path, 120, "0a1b2c3c")
    complete.mkdir()
    manifest.write(complete, manifest.Manifest(step=120, num_ps=1, saved_at_s=1.0, files=()))
    catalog.publish(complete, tmp_path, 120)
    with Servers(tmp_path) as servers:
        servers.start_controller()
    assert not left.exists()
    assert 'model_checkpoint_path: "model.ckpt-120"' in (tmp_path / "checkpoint").read_text()


def test_a_member_gives_up_when_only_a_controller_that_was_replaced_answers(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        member = servers.start_ps(
            0, membership=servers.membership(rejoin_timeout_s=1.0)
        )._member._session
        wait_until(lambda: member._generation, what="its welcome")
        member._generation += 3
        member._call.cancel()
        reason = wait_until(lambda: servers.exits["ps-0"].reason, what="the ps gives up")
        assert "was replaced by generation" in reason
