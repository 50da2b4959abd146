"""A local cluster that must not start."""

import fcntl

import pytest
from rich.console import Console

from megalith.cli.local import LocalCluster
from megalith.cli.waiting import WaitingLines
from megalith.runner.config import RunnerConfig
from megalith.wire.errors import ModelDirInUse


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
        locked.append(file.name)
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
