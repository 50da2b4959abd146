"""A job whose checkpoint is damaged does not start: the error names the file and the ways out."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.storage import files as stored
from megalith.client import Segment, Sgd, TableConfig, Zeros
from megalith.control import Controller
from megalith.errors import CheckpointDamaged
from support.servers import Servers
from support.waiting import wait_until

IDS = np.arange(5000)
WAYS_OUT = "to start with an empty model on purpose"


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of two servers."""
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(4, Zeros(), Sgd(1.0)),)))
        cluster.push({"t": (IDS, np.ones((IDS.size, 4), np.float32))})
        for number in range(8):
            cluster.put_blob(f"blob {number}", bytes(1000))
        return Path(cluster.controller.save().path)


def table_files(saved):
    return sorted(saved.glob("table-*"))


def truncate(saved):
    path = table_files(saved)[1]
    os.truncate(path, path.stat().st_size - 1)
    return path.name


def flip_a_bit(saved):
    path = table_files(saved)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path.name


def flip_a_bit_of_a_blob(saved):
    path = sorted(saved.glob("blobs-*"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path.name


def remove(saved):
    path = table_files(saved)[1]
    path.unlink()
    return path.name


def swap(saved):
    """Each file has the other one's name."""
    first, second = table_files(saved)
    between = saved / "between"
    first.rename(between)
    second.rename(first)
    between.rename(second)
    return "table-"


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, flip_a_bit_of_a_blob, remove, swap])
@pytest.mark.parametrize("num_ps", [2, 3])
def test_a_job_does_not_start_from_damaged_files(tmp_path, saved, damage, num_ps):
    name = damage(saved)
    with Servers(tmp_path, num_ps=num_ps) as servers:
        servers.start_all()
        exits = [servers.exits[f"ps-{index}"] for index in range(num_ps)]
        wait_until(lambda: any(each.reason for each in exits), what="a ps gives up")
        (said, *_) = [each for each in exits if each.reason]
        assert said.status == 1
        assert str(saved) in said.reason
        assert name in said.reason
        assert WAYS_OUT in said.reason
        job = Controller(servers.controller.address, None, 60)
        assert job.status().phase == "forming", "nobody trains with a part of a model"
        assert job.status().last_checkpoint == str(saved), "and it stays the newest"


@pytest.mark.parametrize("kind", ["table", "variables", "applied", "blobs"])
def test_a_job_does_not_start_from_files_that_it_may_not_read(tmp_path, saved, monkeypatch, kind):
    path = sorted(saved.glob(f"{kind}-*"))[0]

    def refuse(opened, *arguments):
        if str(opened) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open(opened, *arguments)

    monkeypatch.setattr(stored, "open", refuse, raising=False)  # root may read everything
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        exits = [servers.exits[f"ps-{index}"] for index in range(2)]
        wait_until(lambda: any(each.reason for each in exits), what="a ps gives up")
        (said, *_) = [each for each in exits if each.reason]
        assert said.status == 1
        assert f"{path} may not be read by user" in said.reason
        assert "give that user the right to read it" in said.reason
        job = Controller(servers.controller.address, None, 60)
        assert job.status().phase == "forming"


@pytest.mark.parametrize("version", [99, None, "3"])
def test_a_job_does_not_start_from_a_manifest_of_another_version(tmp_path, saved, version):
    path = saved / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format": version}))
    with (
        Servers(tmp_path, num_ps=2) as servers,
        pytest.raises(CheckpointDamaged, match=rf"{path} has format {version}.*{WAYS_OUT}"),
    ):
        servers.start_controller()
