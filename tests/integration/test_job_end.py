"""The end of a job: what was trained is saved before anything else, and what is not saved is
said."""

import errno
import threading
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.layout import manifest
from megalith.client import Segment, Sgd, TableConfig, Zeros
from megalith.controller.members import job_files
from megalith.errors import SaveFailed
from support.servers import Servers
from support.waiting import LIMIT_S, wait_until

FULL = "cannot write the checkpoint: No space left on device"


def outcome_of(job):
    return wait_until(lambda: (status := job.status()).outcome and status, what="an outcome")


def checkpoints(model_dir):
    return sorted(path.parent.name for path in Path(model_dir).glob("model.ckpt-*/manifest.json"))


def fail(*arguments, **keywords):
    raise ZeroDivisionError("not in this evaluation")


def start(servers, **task):
    """A running cluster: (SDK's controller, chief)."""
    servers.start_controller()
    for index in range(servers.num_ps):
        servers.start_ps(index)
    chief = servers.start_worker(0, batch_size=64, **task)
    return servers.connect().controller, chief


def test_an_evaluation_that_raises_does_not_cost_the_model(tmp_path, monkeypatch):
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        job, chief = start(servers, num_examples=64 * 30)
        monkeypatch.setattr(chief._training._task, "evaluate", fail)
        wait_until(lambda: servers.exits["worker-0"].reason, what="the chief gives up")
        assert "not in this evaluation" in servers.exits["worker-0"].reason
        assert checkpoints(tmp_path) == ["model.ckpt-30"]
        status = job.status()
        assert (status.outcome, status.unsaved, status.ending) == ("", "", "")
        # Whoever started the chief knows whether it gets another try; here it does not.
        job.end_job(False, "the chief failed")
        status = outcome_of(job)
        assert (status.outcome, status.reason) == (
            "failed",
            f"the chief failed; saved {tmp_path}/model.ckpt-30",
        )
        assert checkpoints(tmp_path) == ["model.ckpt-30"]


def test_a_job_that_fails_saves_what_it_has_and_says_where_and_why(tmp_path):
    with Servers(tmp_path, num_ps=2, num_workers=1) as servers:
        job, _ = start(servers)
        wait_until(lambda: job.training_status() > 20)
        assert job.status().unsaved.startswith("steps 0..")
        assert job.status().unsaved.endswith("of this job: there is no checkpoint")
        job.end_job(False, "worker-3 read a malformed row")
        status = outcome_of(job)
        (saved,) = checkpoints(tmp_path)
        assert status.outcome == "failed"
        assert status.reason == f"worker-3 read a malformed row; saved {tmp_path}/{saved}"
        assert manifest.read(tmp_path / saved).rows > 0
        assert manifest.read(tmp_path / saved).step > 20
        for name in ("ps-0", "ps-1", "worker-0"):
            wait_until(lambda name=name: "malformed row" in servers.exits[name].reason, what=name)


def test_a_save_into_another_directory_does_not_stand_in_for_the_last_one(tmp_path):
    with Servers(tmp_path / "job", num_ps=1, num_workers=1) as servers:
        job, _ = start(servers)
        wait_until(lambda: job.training_status() > 20)
        job.stop("Stop")
        wait_until(lambda: job.block_status()[0] == [0])
        step = job.training_status()
        job.save(str(tmp_path / "copy"))
        assert checkpoints(tmp_path / "copy") == [f"model.ckpt-{step}"]
        assert job.status().unsaved == f"steps 0..{step} of this job: there is no checkpoint"
        job.resume()
        status = outcome_of(job)
        assert f"saved {tmp_path}/job/model.ckpt-{step}" in status.reason
        assert checkpoints(tmp_path / "job") == [f"model.ckpt-{step}"]


@pytest.mark.parametrize("write", ["push", "assign_rows"])
def test_what_a_client_writes_beside_the_workers_is_in_the_last_save(tmp_path, write):
    keys = np.arange(5_000)
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        job, _ = start(servers)
        cluster = servers.connect()
        wait_until(lambda: job.training_status() > 20)
        job.stop("Stop")
        wait_until(lambda: job.block_status()[0] == [0])
        cluster.create_tables(TableConfig("aside", (Segment(4, Zeros(), Sgd(1.0)),)))
        first = job.save()
        assert job.status().unsaved == ""
        getattr(cluster, write)({"aside": (keys, np.ones((keys.size, 4), np.float32))})
        unsaved = wait_until(lambda: job.status().unsaved, what="the ps reports it")
        assert unsaved == f"pushes since {first.path}"
        job.resume()
        assert f"saved {tmp_path}/model.ckpt-r1-{first.step}" in outcome_of(job).reason
        assert (
            manifest.read(tmp_path / f"model.ckpt-r1-{first.step}").rows == first.rows + keys.size
        )


def test_a_push_right_before_a_finished_job_ends_again_is_saved(tmp_path, monkeypatch):
    """Its ps reports it up to a heartbeat later, when all workers are done."""
    is_pushed = threading.Event()
    rows = TableConfig("aside", (Segment(4, Zeros(), Sgd(1.0)),))
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        job, _ = start(servers, num_examples=64 * 10)
        assert outcome_of(job).reason == f"all workers finished; saved {tmp_path}/model.ckpt-10"

    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        servers.heartbeat_s = 1.0
        coordinator = servers.start_controller()._coordinator
        hear_all_ps = coordinator.hear_all_ps

        def hear_once_it_is_pushed(stop, timeout_s):
            assert is_pushed.wait(LIMIT_S)
            return hear_all_ps(stop, timeout_s)

        monkeypatch.setattr(coordinator, "hear_all_ps", hear_once_it_is_pushed)
        servers.start_ps(0)
        servers.start_worker(0, batch_size=64, num_examples=64 * 10)
        cluster = servers.connect()
        cluster.create_tables(rows)
        cluster.push({"aside": (np.arange(100), np.ones((100, 4), np.float32))})
        is_pushed.set()
        status = outcome_of(cluster.controller)
        assert status.reason == f"all workers finished; saved {tmp_path}/model.ckpt-r1-10"
        saved = manifest.read(tmp_path / "model.ckpt-r1-10")
        assert saved.rows == manifest.read(tmp_path / "model.ckpt-10").rows + 100


def test_a_finished_job_that_is_started_again_saves_nothing_and_names_the_checkpoint(tmp_path):
    for _ in range(3):
        with Servers(tmp_path, num_ps=2, num_workers=2) as servers:
            servers.start_all(batch_size=64, num_examples=64 * 10)
            status = outcome_of(servers.connect().controller)

    assert status.reason == f"all workers finished; nothing new since {tmp_path}/model.ckpt-10"
    assert checkpoints(tmp_path) == ["model.ckpt-10"]


def test_a_last_save_that_fails_is_tried_again_while_the_parameter_servers_stay_up(
    tmp_path, monkeypatch
):
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        job, _ = start(servers, num_examples=64 * 30)
        saver = servers.controller._saver
        tries = []

        def fail_twice(*arguments, **keywords):
            tries.append(1)
            if len(tries) <= 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return type(saver).save(saver)

        monkeypatch.setattr(saver, "save", fail_twice)
        wait_until(lambda: tries, what="the first try")
        status = job.status()
        if len(tries) < 3:
            assert (status.ending, status.outcome) == ("all workers finished", "")
            assert servers.exits["ps-0"].reason == ""
        status = outcome_of(job)
        assert (status.outcome, status.reason) == (
            "succeeded",
            f"all workers finished; saved {tmp_path}/model.ckpt-30",
        )
        assert len(tries) == 3


def test_an_operator_can_end_a_job_whose_last_save_fails_and_is_told_what_is_not_saved(
    tmp_path, monkeypatch
):
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        job, _ = start(servers, num_examples=64 * 30)
        tries = []

        def always_fail(*arguments, **keywords):
            tries.append(1)
            raise SaveFailed(FULL)

        monkeypatch.setattr(servers.controller._saver, "save", always_fail)
        wait_until(lambda: len(tries) >= 2, what="it is tried again")
        job.end_job(False, "a second one that would save too")  # changes nothing: it is being saved
        assert job.status().outcome == ""
        job.end_job(False, "give up", at_once=True)
        status = outcome_of(job)
        assert status.outcome == "failed"
        assert (
            status.reason == "give up; not saved: steps 0..30 of this job: there is no checkpoint"
        )
        wait_until(lambda: "give up" in servers.exits["ps-0"].reason)


def test_a_failing_job_waits_for_a_missing_ps_no_longer_than_it_may(tmp_path):
    with Servers(
        tmp_path, num_ps=2, num_workers=1, final_save_timeout_s=1.0, suspect_s=0.2
    ) as servers:
        servers.start_controller()
        first = servers.start_ps(0)
        servers.start_ps(1)
        servers.start_worker(0, batch_size=64)
        job = servers.connect().controller
        wait_until(lambda: job.training_status() > 5)
        first.stop(0)
        wait_until(lambda: job.status().phase == "forming")
        job.end_job(False, "enough")
        status = outcome_of(job)
        assert status.outcome == "failed"
        assert status.reason.startswith("enough; not saved: steps 0..")
        assert "waiting for ps-0" in status.reason
        assert checkpoints(tmp_path) == []


def test_a_failing_job_whose_save_cannot_succeed_ends_in_time_and_says_what_is_lost(
    tmp_path, monkeypatch
):
    with Servers(tmp_path, num_ps=1, num_workers=1, final_save_timeout_s=2.0) as servers:
        job, _ = start(servers)
        wait_until(lambda: job.training_status() > 20)

        def full(directory="", hold=False):
            raise SaveFailed(FULL)

        monkeypatch.setattr(servers.controller._saver, "save", full)
        job.end_job(False, "worker-0 failed")
        status = outcome_of(job)
        assert status.outcome == "failed"
        assert status.reason.startswith("worker-0 failed; not saved: steps 0..")
        assert status.reason.endswith(f"of this job: there is no checkpoint ({FULL})")


def test_a_job_that_never_trained_ends_at_once(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=1) as servers:
        servers.start_controller()
        job = servers.connect().controller
        job.end_job(False, "no such task")
        status = outcome_of(job)
        assert (status.outcome, status.reason) == ("failed", "no such task; nothing was trained")


def test_the_outcome_says_whose_share_was_not_trained(tmp_path):
    with Servers(tmp_path, num_ps=1, num_workers=2, lost_worker_s=0.5, suspect_s=0.2) as servers:
        servers.start_controller()
        servers.start_ps(0)
        servers.start_worker(0, batch_size=64, num_examples=64 * 1000)
        lost = servers.start_worker(1, batch_size=64, num_examples=64 * 1000)
        job = servers.connect().controller
        wait_until(lambda: job.training_status() > 1)
        job.stop()
        wait_until(lambda: not job.block_status()[1], what="nobody trains")
        lost.stop(0)
        job.resume()
        status = outcome_of(job)
        worker = next(m for m in status.members if (m.role, m.index) == ("worker", 1))
        assert worker.position < 500
        assert status.outcome == "succeeded"
        said = f"worker-1 was lost after {worker.position} of 500 batches: the rest was not trained"
        assert status.reason.endswith(said)
        assert [loss.rows for loss in status.losses] == [0]
        assert status.losses[0].what.startswith(said)


def test_a_job_ends_also_when_its_controller_is_killed_between_the_outcome_and_its_exit(tmp_path):
    kept = tmp_path / job_files.JOURNAL
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        servers.start_ps(0)
        job = servers.connect().controller
        job.end_job(True, "enough")
        outcome_of(job)
        wait_until(lambda: servers.exits["ps-0"].reason, what="the ps is dismissed")
        left = kept.read_bytes()
    kept.write_bytes(left)  # as one that is killed leaves it
    with Servers(tmp_path, num_ps=1, stay_up=False) as servers:
        servers.start_controller()
        reason = wait_until(lambda: servers.exits["controller"].reason, what="it exits")
        assert reason.startswith("enough")
    assert not kept.exists()
