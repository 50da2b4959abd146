"""`megalith up` with its checkpoints on S3, as moto serves it: processes that die, and what is left."""

import os
import signal

import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.storage.location import locate
from support import object_stores
from support.processes import Processes, run_cli
from support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def s3():
    with object_stores.s3_server() as environment, object_stores.set_environment(environment):
        yield


@pytest.mark.long
def test_a_ps_that_is_killed_under_up_comes_back_from_the_store(tmp_path):
    checkpoint_dir = object_stores.new_folder("s3")
    options = ("--checkpoint-dir", checkpoint_dir, "--batch-size", 256, "--restart", 2)
    with Processes(tmp_path) as processes:
        up = processes.cli(
            "up", "--model-dir", processes.model_dir, *options, "--increment-every-s", 0.5
        )
        wait_until(lambda: "Ctrl-C stops everything" in up.output(), what="up")
        job = processes.job()
        wait_until(lambda: job.status().global_step > 20)
        base = job.save().path
        epoch = job.status().epoch
        os.kill(job.status().members[1].pid, signal.SIGKILL)
        wait_until(lambda: job.status().epoch > epoch, what="a map with the new ps")
        wait_until(lambda: job.status().phase == "running")
        restored = job.status().members[1].restored
        assert restored.path == base
        assert restored.rows > 0
        step = job.status().global_step
        wait_until(lambda: job.status().global_step > step)
        up.terminate()
        assert up.wait() in (0, 143)

    newest = catalog.latest(checkpoint_dir)
    assert verify(newest).is_whole
    status, listed, _ = run_cli("ckpt", "ls", checkpoint_dir)
    assert (status, newest.name in listed) == (0, True)
    status, said, _ = run_cli("ckpt", "verify", checkpoint_dir)
    assert (status, "is whole" in said) == (0, True)


@pytest.mark.long
def test_a_controller_that_is_killed_during_a_save_leaves_no_half_checkpoint(tmp_path):
    checkpoint_dir = object_stores.new_folder("s3")
    with Processes(tmp_path) as processes:
        settings = {"num_ps": 1, "num_workers": 1, "checkpoint_dir": checkpoint_dir}
        members = processes.start_cluster(**settings, save_every_s=0.2, increment_every_s=0)
        wait_until(lambda: catalog.latest(checkpoint_dir) is not None, what="the first save")
        wait_until(lambda: catalog.own_work_directories(checkpoint_dir), what="a save under way")
        members["controller"].kill()
        complete = catalog.latest(checkpoint_dir)
        assert verify(complete).is_whole
        processes.start_controller(**settings, save_every_s=0, increment_every_s=0)
        job = processes.job()
        wait_until(lambda: job.status().phase == "running")
        assert catalog.own_work_directories(checkpoint_dir) == []
        saved = locate(job.save().path)
        assert verify(saved).is_whole
        assert catalog.latest(checkpoint_dir) == saved
