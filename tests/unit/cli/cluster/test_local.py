"""A local cluster that must not start."""

import errno
import fcntl
import os
import signal

import pytest
from rich.console import Console

from megalith.cli.cluster import model_dir
from megalith.cli.cluster.local import LocalCluster
from megalith.cli.cluster.local_process import LocalProcess
from megalith.cli.cluster.waiting import WaitingLines
from megalith.errors import InvalidSetting, ModelDirInUse
from megalith.runner.config import RunnerConfig
from megalith.runner.plan import PlannedProcess


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "another megalith up or train is starting there"),
        ("h:1", "a controller at h:1 serves it"),
    ],
)
def test_a_second_up_leaves_the_lock_of_the_first_one_s_controller_alone(
    tmp_path, monkeypatch, address, message
):
    (tmp_path / "controller_server_addr.txt").write_text(address)
    locked = []
    flock = fcntl.flock

    def remember(file, operation):
        locked.append(os.readlink(f"/proc/self/fd/{file.fileno()}"))
        flock(file, operation)

    with open(tmp_path / "up.lock", "a") as lock:
        flock(lock, fcntl.LOCK_EX)
        monkeypatch.setattr(fcntl, "flock", remember)
        cluster = LocalCluster(RunnerConfig(model_dir=str(tmp_path)), stay_up=False)
        with pytest.raises(ModelDirInUse, match=message):
            cluster.start(WaitingLines(Console()))
    assert locked == [str(tmp_path / "up.lock")]
    assert not (tmp_path / "controller.generation").exists()
    assert cluster.processes == []


def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with model_dir.take(tmp_path, "job") as lock:
        assert not lock.closed
    assert (tmp_path / "up.lock").exists()


def test_a_link_in_place_of_the_lock_file_is_named_and_not_followed(tmp_path):
    (tmp_path / "up.lock").symlink_to(tmp_path / "elsewhere")
    cluster = LocalCluster(RunnerConfig(model_dir=str(tmp_path)), stay_up=False)
    with pytest.raises(InvalidSetting, match=r"up\.lock: not a plain file; remove it"):
        cluster.start(WaitingLines(Console()))
    assert not (tmp_path / "elsewhere").exists()


def test_a_process_that_was_killed_is_not_explained_by_the_end_of_its_log(tmp_path):
    process = LocalProcess(PlannedProcess("controller", "controller", {}), tmp_path)
    (tmp_path / "controller.log").write_text("an INFO line that has nothing to do with it")
    os.kill(process.pid, signal.SIGKILL)
    process.wait_or_kill(deadline=0)

    assert str(process.failure()) == (
        "controller was killed (signal 9): by hand, or because the machine had no memory left; "
        f"its log is {tmp_path}/controller.log"
    )
