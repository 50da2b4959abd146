"""What a cluster does with the checkpoint that it starts from, also with one that is not whole."""

import json
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.format import MANIFEST
from megalith.client import Segment, Sgd, TableConfig, Zeros, errors
from megalith.protos import coordination_pb2, coordination_pb2_grpc
from megalith.wire.channel import open_channel
from support.servers import Servers
from support.waiting import wait_until


@pytest.mark.parametrize("num_ps", [1, 3])
def test_a_new_cluster_of_another_size_starts_from_the_checkpoint(tmp_path, num_ps):
    ids = np.arange(2_000)
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(2, Zeros(), Sgd(1.0)),)))
        cluster.push({"t": (ids, np.arange(4_000, dtype=np.float32).reshape(-1, 2))})
        saved = cluster.controller.save()
        assert saved.rows == 2_000
    with Servers(tmp_path, num_ps=num_ps) as servers:
        servers.start_all()
        cluster = servers.connect()
        np.testing.assert_array_equal(
            cluster.pull({"t": ids}).rows["t"], -np.arange(4_000, dtype=np.float32).reshape(-1, 2)
        )
        assert cluster.controller.status().last_checkpoint == saved.path
        wait_until(
            lambda: sum(member.rows for member in cluster.controller.status().members) == 2_000
        )
        with open_channel(servers.controller.address) as channel:
            coordination = coordination_pb2_grpc.CoordinationStub(channel)
            members = coordination.GetStatus(
                coordination_pb2.GetStatusRequest(), timeout=30
            ).members
        assert {member.ps.restored.path for member in members} == {saved.path}
        assert sum(member.ps.restored.rows for member in members) == 2_000


def test_training_goes_on_from_a_checkpoint_with_its_step(tmp_path):
    for run in (1, 2):
        with Servers(tmp_path, num_ps=2, num_workers=1) as servers:
            # The second run goes on after the ten batches of the first
            servers.start_all(batch_size=64, num_examples=64 * 10 * run)
            job = servers.connect().controller
            status = wait_until(lambda job=job: (now := job.status()).outcome and now)
            assert status.global_step == 10 * run


def test_a_damaged_checkpoint_stops_a_ps_with_the_reason(tmp_path):
    with Servers(tmp_path) as servers:
        servers.start_all()
        job = servers.connect().controller
        wait_until(lambda: job.status().phase == "running")
        saved = job.save()
    next(tmp_path.glob("model.ckpt-0/*.arrow")).write_bytes(b"junk")
    with Servers(tmp_path) as servers:
        servers.start_controller()
        servers.start_ps(0)
        wait_until(lambda: servers.exits["ps-0"].status == 1)
        assert saved.path in servers.exits["ps-0"].reason
        assert "the manifest says" in servers.exits["ps-0"].reason


def lose_list(path):
    (path.parent / "checkpoint").unlink()


def lose_manifest(path):
    (path / "manifest.json").unlink()


def lose_everything(path):
    lose_list(path)
    path.rename(path.parent / "elsewhere")


@pytest.mark.parametrize("lose", [lose_list, lose_manifest])
def test_a_job_whose_checkpoint_is_not_whole_does_not_start_empty(tmp_path, lose):
    with Servers(tmp_path) as servers:
        servers.start_all()
        job = servers.connect().controller
        wait_until(lambda: job.status().phase == "running")
        saved = job.save()
    lose(Path(saved.path))
    with (
        Servers(tmp_path) as servers,
        pytest.raises(errors.CheckpointNotFound, match="to start with an empty model"),
    ):
        servers.start_controller()
    for path in (*tmp_path.glob("checkpoint"), Path(saved.path)):  # as the message says
        path.rename(path.with_name(f"away-{path.name}"))
    with Servers(tmp_path) as servers:
        servers.start_all()
        job = servers.connect().controller
        wait_until(lambda: job.status().phase == "running")
        assert job.status().last_checkpoint == ""


@pytest.mark.parametrize("lose", [lose_list, lose_manifest, lose_everything])
def test_a_ps_of_a_running_job_whose_checkpoint_is_gone_does_not_come_back_empty(tmp_path, lose):
    with Servers(tmp_path) as servers:
        servers.start_controller()
        first = servers.start_ps(0)
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
        saved = cluster.controller.save()
        first.stop(0)
        lose(Path(saved.path))
        servers.start_ps(0)
        wait_until(lambda: servers.exits["ps-0"].status == 1)
        assert str(tmp_path / "checkpoint") in servers.exits["ps-0"].reason
        wait_until(lambda: cluster.controller.status().phase == "forming")


def test_a_ps_that_lost_its_stream_keeps_its_rows_though_the_checkpoint_is_gone(tmp_path):
    with Servers(tmp_path) as servers:
        controller = servers.start_controller()
        servers.start_ps(0)
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
        cluster.push({"t": ([1], np.ones((1, 1), np.float32))})
        saved = cluster.controller.save()
        lose_everything(Path(saved.path))
        controller._coordinator.end_sessions()
        wait_until(lambda: cluster.controller.status().members[0].standing == "alive")
        wait_until(lambda: cluster.controller.status().phase == "running")
        assert servers.exits["ps-0"].reason == ""
        np.testing.assert_array_equal(cluster.pull({"t": [1]}).rows["t"], [[-1]])


def test_servers_that_have_not_all_rows_of_the_manifest_end_the_job_with_the_numbers(tmp_path):
    """No server takes the rows of one file for its own: each of the three is content, and only the
    sum is not. With as many as saved, a server compares its own rows with what it had."""
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_all()
        cluster = servers.connect()
        cluster.create_tables(TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),)))
        cluster.push({"t": (np.arange(1000), np.ones((1000, 1), np.float32))})
        saved = cluster.controller.save()
    path = Path(saved.path) / MANIFEST
    content = json.loads(path.read_text())
    del content["checksum"]
    hidden = next(file for file in content["files"] if file["kind"] == "table")
    hidden["buckets"] = "none"
    path.write_text(json.dumps(content))
    with Servers(tmp_path, num_ps=3) as servers:
        servers.start_all()
        job = servers.connect().controller
        status = wait_until(lambda: (now := job.status()).outcome and now)
        assert status.outcome == "failed"
        numbers = f"{saved.path} has 1000 rows, but 3 parameter servers restored {1000 - hidden['rows']}, found 0 expired"
        assert numbers in status.reason
        assert status.epoch == 0
        with pytest.raises(errors.MegalithError):
            job.save()
    assert catalog.latest(tmp_path) == Path(saved.path)
