"""Control and healing against real servers in one process: barriers, status, health, misbehaving
members."""

import os
import socket
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest
from click.testing import CliRunner

from megalith.checkpoint.directory import increments
from megalith.cli.app import app
from megalith.client import Segment, Sgd, TableConfig, Zeros, errors
from megalith.controller.members.sessions import LIMIT
from megalith.protos import common_pb2, coordination_pb2, coordination_pb2_grpc
from support.servers import Servers
from support.waiting import wait_until

CYCLES = int(os.environ.get("MEGALITH_TEST_STOP_CYCLES", "40"))


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Two ps and four workers that train until stopped, shared by the tests here.

    Each leaves it running.
    """
    model_dir = tmp_path_factory.mktemp("control")
    settings = {"suspect_s": 2.0, "save_every_s": 600.0}
    with Servers(model_dir, num_ps=2, num_workers=4, **settings) as servers:
        servers.start_all(batch_size=64, num_examples=0)
        servers.job = servers.connect().controller
        wait_until(lambda: servers.job.training_status() > 5, 100)
        yield servers


@pytest.fixture
def job(training):
    yield training.job
    training.job.resume()


def all_blocked(job):
    blocked, unblocked = job.block_status()
    return bool(blocked) and not unblocked


def test_many_stops_and_resumes_leave_no_worker_stuck(job):
    for cycle in range(CYCLES):
        job.stop()
        wait_until(lambda: all_blocked(job), what=f"all blocked in cycle {cycle}")
        step = job.training_status()
        job.resume()
        if cycle % 20 == 0:
            wait_until(
                lambda before=step: job.training_status() > before,
                what=f"a step after cycle {cycle}",
            )
    step = job.training_status()
    wait_until(lambda: job.training_status() > step + 4)


def test_a_stop_says_who_and_why_and_a_resume_forgets_it(job):
    job.stop(reason="night shift")
    barrier = job.status().barrier
    assert (barrier.is_placed, barrier.action, barrier.reason) == (True, "", "night shift")
    with pytest.raises(errors.BarrierAlreadyPlaced, match=r"Barrier is placed already\."):
        job.stop("Save", "me too")
    assert job.status().barrier == barrier
    job.resume()
    assert (job.status().barrier.is_placed, job.status().barrier.reason) == (False, "")


def test_a_hold_of_a_platform_that_is_gone_is_ended_by_the_command_that_resume_names(training, job):
    def resume(*options):
        done = CliRunner().invoke(
            app, ["ctl", "--controller", training.controller.address, "resume", *options]
        )
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()

    job.stop(reason="suspended", holder="platform")
    assert resume() == [
        "training is still suspended by the platform: suspended",
        "`megalith ctl app resume` ends the platform's hold; if its AppMaster is gone, "
        "`megalith ctl resume --holder platform` does",
    ]
    assert resume("--holder", "platform") == ["training goes on"]
    assert not job.status().is_stopped
    job.stop()
    assert resume("--holder", "platform") == ["training is still stopped by an operator"]
    assert resume() == ["training goes on"]


def test_the_platform_s_hold_stays_when_an_operator_resumes_and_the_status_lists_both(job):
    job.stop(reason="suspended", holder="platform")
    job.stop(reason="look at data")
    barrier = job.status().barrier
    assert [(holder.kind, holder.reason) for holder in barrier.holders] == [
        ("platform", "suspended"),
        ("operator", "look at data"),
    ]
    wait_until(lambda: all_blocked(job))
    job.resume()
    assert job.status().is_stopped
    step = job.training_status()
    job.resume("platform")
    wait_until(lambda: job.training_status() > step)
    with pytest.raises(errors.InvalidRequest, match="holder 'save'"):
        job.resume("save")


def test_an_unknown_action_holds_training_and_the_cluster_goes_on(job, caplog):
    for _ in range(2):
        job.stop("Dance")
        wait_until(lambda: all_blocked(job))
        job.resume()
    assert caplog.text.count("unknown barrier action 'Dance'") == 1
    step = job.training_status()
    wait_until(lambda: job.training_status() > step)


def test_a_save_that_holds_training_is_one_moment_of_all_workers(job, training):
    saved = job.save(hold=True)
    assert not job.status().barrier.is_placed
    assert saved.step > 0
    job.stop()
    wait_until(lambda: all_blocked(job))
    saved = job.save(hold=True)  # somebody else's barrier stays
    assert job.status().is_stopped
    seen = training.connect().pull(variables=["global_step"]).variables["global_step"]
    assert saved.step == seen
    last = job.status().last_save
    assert (last.step, last.path, last.error) == (saved.step, saved.path, "")


def test_a_save_that_went_on_without_workers_that_did_not_block_says_so_on_the_terminal(
    job, training, monkeypatch
):
    assert job.save(hold=True).moving_workers == ()
    monkeypatch.setattr(training.controller._coordinator, "moving_workers", lambda: (1, 3))
    command = ["ctl", "--model-dir", str(training.model_dir), "save", "--hold"]
    shown = CliRunner().invoke(app, command).stdout
    assert "not one moment of all workers: [1, 3] did not block in time" in shown
    assert job.save(hold=True).moving_workers == (1, 3)


def test_the_status_tells_of_load_buckets_and_heart_beats(job):
    def figures():
        members = job.status().members
        ps, workers = ([m for m in members if m.role == role] for role in ("ps", "worker"))
        return (
            all(m.requests_per_s > 0 and m.p99_s > 0 and m.rows > 0 for m in ps)
            and all(m.global_step > 0 and m.examples_per_s > 0 for m in workers)
            and members
        )

    members = wait_until(figures)
    assert [m.buckets for m in members if m.role == "ps"] == [512, 512]
    assert all(m.standing == "alive" and m.silent_s < 10 for m in members)
    assert all(m.resident_bytes > 10 * 2**20 for m in members if m.role == "ps")
    status = job.status()
    assert status.up_s > 0
    assert 0 < status.next_save_s <= 600
    assert status.next_save_step is None


def session(address, role=common_pb2.ROLE_WORKER, **register):
    """A session as a foreign program opens it: (channel, responses). Nothing is read from it."""
    silence = threading.Event()

    def requests():
        yield coordination_pb2.SessionRequest(
            register=coordination_pb2.Register(
                **{
                    "role": role,
                    "address": "127.0.0.1:1",
                    "incarnation": "foreign",
                    "heartbeat_s": 1.0,
                }
                | register
            )
        )
        while not silence.wait(0.2):
            yield coordination_pb2.SessionRequest(worker=coordination_pb2.WorkerReport())

    # With the smallest windows: what is not read stays with the controller at once.
    channel = grpc.insecure_channel(address, options=[("grpc.http2.bdp_probe", 0)])
    return channel, coordination_pb2_grpc.CoordinationStub(channel).Session(requests()), silence


def test_a_session_that_stops_reading_is_dropped_and_holds_up_nobody(tmp_path, caplog):
    with Servers(tmp_path, num_ps=1, num_workers=1, suspect_s=0.5) as servers:
        servers.start_controller()
        servers.start_ps(0)
        job = servers.connect().controller
        wait_until(lambda: job.status().phase == "initializing")
        channel, responses, silence = session(servers.controller.address, index=0)
        wait_until(lambda: job.status().members[1].is_connected)
        for _ in range(4 * LIMIT):
            job.stop()
            job.resume()
            if not job.status().members[1].is_connected:
                break
        wait_until(lambda: not job.status().members[1].is_connected)
        assert caplog.text.count("its session is dropped") == 1
        with pytest.raises(grpc.RpcError):
            list(responses)
        silence.set()
        channel.close()
        job.stop()
        assert job.status().is_stopped


@pytest.mark.parametrize(
    "claim", [{"epoch": 2**63 - 1}, {"global_step": 2**63 - 1}, {"heartbeat_s": 1e9}]
)
def test_one_registration_does_not_poison_the_cluster(tmp_path, claim):
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        servers.start_controller()
        servers.start_ps(0)
        job = servers.connect().controller
        epoch = wait_until(lambda: (now := job.status()).phase == "initializing" and now.epoch)
        channel, responses, silence = session(servers.controller.address, index=0, **claim)
        with pytest.raises(grpc.RpcError) as refused:
            next(responses)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        silence.set()
        channel.close()
        status = job.status()
        assert (status.epoch, status.global_step, status.members[1].address) == (epoch, 0, "")


def test_a_report_that_cannot_be_ends_its_session_with_the_reason(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        servers.start_controller()
        servers.start_ps(0)
        job = servers.connect().controller
        wait_until(lambda: job.status().phase == "initializing")

        def requests():
            register = coordination_pb2.Register(
                role=common_pb2.ROLE_WORKER,
                address="127.0.0.1:1",
                incarnation="foreign",
                heartbeat_s=1.0,
            )
            yield coordination_pb2.SessionRequest(register=register)
            yield coordination_pb2.SessionRequest(
                worker=coordination_pb2.WorkerReport(global_step=2**63 - 1)
            )
            done.wait(30)

        done = threading.Event()
        with grpc.insecure_channel(servers.controller.address) as channel:
            stub = coordination_pb2_grpc.CoordinationStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.Session(requests()))
            done.set()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "worker report: global_step=9223372036854775807" in refused.value.details()
        assert job.status().global_step == 0


def test_a_replacement_waits_as_long_as_the_controller_does_for_a_dead_member_with_slow_heart_beats(
    tmp_path,
):
    with Servers(tmp_path, num_ps=1, num_workers=0) as servers:
        servers.start_controller()
        vanished = threading.Event()

        # A machine that is gone without a word: its stream stays open, and nothing comes
        def requests():
            register = coordination_pb2.Register(
                role=common_pb2.ROLE_PS,
                address="127.0.0.1:1",
                incarnation="gone",
                heartbeat_s=2.0,
                pid=4711,
                host="far",
            )
            yield coordination_pb2.SessionRequest(register=register)
            vanished.wait(60)

        with grpc.insecure_channel(servers.controller.address) as channel:
            responses = coordination_pb2_grpc.CoordinationStub(channel).Session(requests())
            next(responses)
            replacement = servers.start_ps(0)
            job = servers.connect().controller
            wait_until(lambda: job.status().members[0].address == replacement.address)
            assert servers.exits["ps-0"].reason == ""
            vanished.set()


def test_a_refusal_names_the_process_that_holds_the_place(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=0) as servers:
        servers.start_controller()
        servers.start_ps(0)
        job = servers.connect().controller
        member = wait_until(lambda: (now := job.status().members[0]).is_ready and now)
        assert (member.pid, member.host) == (os.getpid(), socket.gethostname())
        channel, responses, silence = session(
            servers.controller.address, common_pb2.ROLE_PS, index=0
        )
        with pytest.raises(grpc.RpcError) as refused:
            next(responses)
        silence.set()
        channel.close()
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert f"(process {os.getpid()} on {socket.gethostname()})" in refused.value.details()


def test_a_member_of_another_job_is_refused_and_the_cluster_goes_on(training, job):
    channel, responses, silence = session(
        training.controller.address, common_pb2.ROLE_PS, index=0, job="/models/other"
    )
    with pytest.raises(grpc.RpcError) as refused:
        next(responses)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "belongs to job /models/other" in refused.value.details()
    silence.set()
    channel.close()
    step = job.training_status()
    wait_until(lambda: job.training_status() > step)


def test_a_ps_over_its_memory_limit_holds_training_until_an_operator_resumes(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        servers.start_ps(0)
        servers.start_ps(1, memory_limit_bytes=1)
        job = servers.connect().controller
        status = wait_until(lambda: (now := job.status()).is_stopped and now)
        assert status.barrier.reason.startswith("ps-1: Memory limit exceeded. Current: ")
        assert status.members[1].complaint.endswith(", Limit: 1")
        assert (status.members[0].complaint, status.members[1].memory_limit_bytes) == ("", 1)
        job.resume()
        wait_until(lambda: job.status().members[1].silent_s < 0.1)
        assert not job.status().is_stopped  # it was said once


def test_stop_as_action_ends_the_shares_and_the_job_with_a_last_save(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=2) as servers:
        servers.start_all(batch_size=64, num_examples=0)
        job = servers.connect().controller
        wait_until(lambda: job.training_status() > 5, 100)
        job.stop("Stop")
        wait_until(lambda: all_blocked(job))
        step = job.training_status()
        job.resume()
        status = wait_until(lambda: (now := job.status()).outcome and now)
        assert (status.outcome, status.global_step) == ("succeeded", step)
        assert status.last_checkpoint.endswith(f"model.ckpt-{step}")


def test_files_in_the_model_directory_save_and_stop_a_job(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=2, action_poll_s=0.05) as servers:
        servers.start_all(batch_size=64, num_examples=0)
        job = servers.connect().controller
        wait_until(lambda: job.training_status() > 5, 100)
        assert ask_by_file(tmp_path, "action: TRIGGER_SAVE") == "OK"
        assert job.status().last_save.path
        job.stop()
        assert ask_by_file(tmp_path, "action: STOP") == "Barrier is placed already."
        job.resume()
        assert ask_by_file(tmp_path, "action: STOP") == "OK"
        status = wait_until(lambda: (now := job.status()).outcome and now)
        assert status.outcome == "succeeded"
        assert status.reason.startswith("all workers finished, as the file monolith_action says")
        assert status.last_checkpoint.endswith(f"model.ckpt-{status.global_step}")


def ask_by_file(model_dir, text):
    response = model_dir / "monolith_action_response"
    response.unlink(missing_ok=True)
    (model_dir / "tmp").write_text(text)
    (model_dir / "tmp").rename(model_dir / "monolith_action")
    return wait_until(lambda: response.exists() and response.read_text())


def test_while_nothing_is_trained_no_save_takes_the_place_of_an_older_checkpoint(tmp_path):
    """A night on which training is held would leave ten copies of one model."""
    settings = {"save_every_s": 0.2, "increment_every_s": 0.1, "max_to_keep": 2}
    with Servers(tmp_path, num_ps=1, **settings) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
        job = cluster.controller
        newest = ""
        for _ in range(3):
            cluster.push({"t": ([1], np.ones((1, 1), np.float32))})
            before = newest
            newest = wait_until(
                lambda before=before: (
                    (now := job.status()).last_checkpoint != before
                    and now.planned_saves_wait == "nothing was trained since the last one"
                    and now.last_checkpoint
                ),
                what="a save of the push, and none after it",
            )

        assert not increments.read_chain(Path(newest)).increments, "it has what they had"
        kept = sorted(tmp_path.glob("model.ckpt-*"))
        assert len(kept) == 2
        said = CliRunner().invoke(app, ["ctl", "--model-dir", str(tmp_path), "status"]).output
        assert "waits: nothing was trained since the last one" in said
        assert sorted(tmp_path.glob("model.ckpt-*")) == kept


def test_saves_come_by_the_clock_and_by_steps(tmp_path):
    with Servers(tmp_path, num_ps=1, save_every_s=0.2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
        cluster.push({"t": ([1], np.ones((1, 1), np.float32))})
        job = cluster.controller
        first = wait_until(lambda: job.status().last_save)
        cluster.push({"t": ([1], np.ones((1, 1), np.float32))})
        wait_until(lambda: job.status().last_save.ended_at_s > first.ended_at_s)
        assert 0 <= job.status().next_save_s <= 0.2
