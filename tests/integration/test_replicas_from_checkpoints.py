"""Replicas that begin with a checkpoint, go back to one, or stay where they are."""

import errno
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem

from megalith.checkpoint.storage import scratch
from megalith.cli.ctl import ctl
from megalith.client import (
    FixedR8,
    Fp16,
    RandomUniform,
    Segment,
    Sgd,
    TableConfig,
    VariableConfig,
)
from megalith.errors import (
    AccessDenied,
    CheckpointNotFound,
    LimitExceeded,
    NotReady,
    TooStale,
    Unavailable,
    UnknownTable,
)
from megalith.replica.copies.ps_copy import PsCopy
from support import object_stores
from support.replicas import ReplicaReader, assert_serves
from support.servers import Servers
from support.waiting import wait_until

DIM = 4
NOW = 1_790_000_000


@pytest.fixture
def servers(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        start_ps(servers)
        yield servers


def start_ps(servers):
    for index in range(servers.num_ps):
        servers.start_ps(index, delta_every_s=0.05)


def table_of(name="t", compressor=None, **settings):
    more = {} if compressor is None else {"compressor": compressor}
    segment = Segment(DIM, RandomUniform(-0.5, 0.5), Sgd(0.1), **more)
    return TableConfig(name, (segment,), **settings)


def push(cluster, ids, table="t", req_time_s=NOW):
    ids = np.asarray(ids, np.int64)
    gradients = np.ones((ids.size, DIM), np.float32)
    cluster.push({table: (ids, gradients)}, req_time_s=req_time_s)


def reader_of(servers, index=0, **settings):
    reader = ReplicaReader(servers.start_replica(index, **settings).address)
    reader.wait_ready()
    return reader


def paths(reader):
    """By ps: (streams that went on from the checkpoint, snapshots of tables)."""
    return [(ps.resumed_from_save, ps.snapshots) for ps in reader.status().ps]


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_300000_rows_come_out_of_the_checkpoint_and_the_ps_send_only_what_changed(servers, order):
    cluster = servers.connect()
    cluster.create_tables(table_of(), table_of("half", Fp16()))
    weights = np.arange(80_000, dtype=np.float32).reshape(400, 200)  # in parts
    cluster.create_variables(VariableConfig("w", weights, Sgd(1.0)))
    ids = np.random.default_rng(7).choice(2**40, 300_000, replace=False)
    if order == "sorted":
        ids = np.sort(ids)
    for begin in range(0, ids.size, 50_000):
        push(cluster, ids[begin : begin + 50_000])
    push(cluster, ids[:5000], "half")
    cluster.controller.save()
    push(cluster, ids[:700])
    push(cluster, np.arange(300) + 2**41)
    cluster.push({}, variable_gradients={"w": np.ones_like(weights)})
    reader = reader_of(servers)
    status = reader.status()
    assert status.started_from == "checkpoint model.ckpt-0"
    assert paths(reader) == [(1, 0), (1, 0)]
    assert sum(ps.rows_applied for ps in status.ps) == 1000
    assert status.rows == ids.size + 5000 + 300
    assert_serves(reader, cluster, "t", np.concatenate([ids, np.arange(300) + 2**41]))
    assert_serves(reader, cluster, "half", ids[:6000], tolerance=1e-3)
    np.testing.assert_array_equal(reader.variables("w")[0], weights - 1)

    push(cluster, ids[:10])
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", ids[:20])
    assert paths(reader) == [(1, 0), (1, 0)]


def test_replicas_that_follow_during_a_save_leave_the_next_one_what_changed_since(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.arange(200_000)
    push(cluster, ids)
    first = reader_of(servers, 0)
    cluster.controller.save()
    push(cluster, ids[:500])
    first.wait_for_a_version()
    late = reader_of(servers, 1)
    assert paths(late) == [(1, 0), (1, 0)]
    assert_serves(late, cluster, "t", ids)


def test_increments_are_loaded_with_the_checkpoint(tmp_path):
    with Servers(tmp_path, num_ps=2, increment_every_s=0.2) as servers:
        servers.start_controller()
        start_ps(servers)
        cluster = servers.connect()
        cluster.create_tables(table_of(expire_days=1))
        push(cluster, np.arange(2000), req_time_s=NOW - 3 * 86400)
        cluster.controller.save()
        push(cluster, np.arange(1500, 2500))
        cluster.expire()
        folder = tmp_path / "increments" / "model.ckpt-0"
        wait_until(lambda: (folder / "000001").exists())
        reader = reader_of(servers)
        assert " increment" in reader.status().started_from
        assert paths(reader) == [(1, 0), (1, 0)]
        assert reader.status().rows == 1000
        assert_serves(reader, cluster, "t", np.arange(2600))


def test_ps_that_restored_a_checkpoint_go_on_from_it_also_with_another_number(tmp_path):
    ids = np.random.default_rng(3).choice(2**40, 20_000, replace=False)
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        start_ps(servers)
        cluster = servers.connect()
        cluster.create_tables(table_of(expire_days=1))
        push(cluster, ids[:500], req_time_s=NOW - 3 * 86400)  # expired when they are restored
        push(cluster, ids[500:])
        cluster.controller.save()
    with Servers(tmp_path, num_ps=3) as servers:
        servers.start_controller()
        start_ps(servers)
        cluster = servers.connect()
        cluster.create_tables(table_of(expire_days=1))
        push(cluster, ids[:100])
        reader = reader_of(servers)
        assert paths(reader) == [(1, 0)] * 3
        assert reader.status().rows == cluster.table_stats()["t"].rows == 19_600
        assert_serves(reader, cluster, "t", ids)


def test_a_ps_that_does_not_know_the_save_sends_a_snapshot(servers):
    """What changed since was forgotten: the delta log of the table is too small."""
    cluster = servers.connect()
    cluster.create_tables(table_of(touched_capacity=100))
    push(cluster, np.arange(1000))
    cluster.controller.save()
    push(cluster, np.arange(500, 3000))
    reader = reader_of(servers)
    assert reader.status().started_from == "checkpoint model.ckpt-0"
    assert [ps.snapshots for ps in reader.status().ps] == [1, 1]
    assert reader.status().rows == 3000
    assert_serves(reader, cluster, "t", np.arange(3000))


def test_a_damaged_checkpoint_is_passed_over_and_said(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(1000))
    path = cluster.controller.save().path
    (servers.model_dir / path / "manifest.json").write_text("{")
    reader = reader_of(servers)
    assert "snapshots of the ps" in reader.status().started_from
    assert "manifest.json" in reader.status().started_from
    assert paths(reader) == [(0, 1), (0, 1)]
    assert_serves(reader, cluster, "t", np.arange(1000))
    control = cluster.controller
    wait_until(lambda: control.status().replicas[0].report.started_from)
    assert "snapshots" in control.status().replicas[0].report.started_from


def test_a_compressor_that_changed_since_the_checkpoint_is_served_right(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of(compressor=FixedR8(1.0)))
    push(cluster, np.arange(1000))
    cluster.controller.save()
    cluster.create_tables(table_of(compressor=FixedR8(4.0)))
    reader = reader_of(servers)
    assert_serves(reader, cluster, "t", np.arange(1000), tolerance=4 / 128)
    assert [ps.snapshots for ps in reader.status().ps] == [1, 1]


def test_what_was_dropped_since_the_checkpoint_is_gone(tmp_path):
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        start_ps(servers)
        cluster = servers.connect()
        cluster.create_tables(table_of(), table_of("old"))
        push(cluster, np.arange(100))
        push(cluster, np.arange(100), "old")
        cluster.controller.save()
    with Servers(tmp_path, num_ps=2) as servers:
        servers.start_controller()
        start_ps(servers)
        cluster = servers.connect()
        cluster.create_tables(table_of())
        cluster.drop_table("old")
        reader = reader_of(servers)
        assert paths(reader) == [(1, 0), (1, 0)]
        assert reader.status().rows == 100
        with pytest.raises(UnknownTable, match="old"):
            reader.lookup("old", [1])


def test_a_share_of_a_checkpoint(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.random.default_rng(2).choice(2**40, 4000, replace=False)
    push(cluster, ids)
    cluster.controller.save()
    push(cluster, np.arange(1000))
    readers = [reader_of(servers, index, replica_shards=f"{index}/2") for index in range(2)]
    assert sum(reader.status().rows for reader in readers) == 5000
    for reader in readers:
        assert paths(reader) == [(1, 0), (1, 0)]
        assert sum(ps.rows_applied for ps in reader.status().ps) < 1000


def test_a_pinned_replica_stays_and_says_so_and_catches_up_by_changes_alone(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.arange(1000)
    push(cluster, ids)
    reader = reader_of(servers)
    pinned = cluster.pull({"t": ids}).rows["t"]
    assert reader.pin().is_pinned
    push(cluster, ids)
    push(cluster, ids + 1000)
    before_s = reader.freshness().staleness_s
    wait_until(lambda: reader.freshness().staleness_s > before_s + 0.5)
    np.testing.assert_array_equal(reader.lookup("t", ids), pinned)
    assert reader.status().hold == "pinned"
    control = cluster.controller
    wait_until(lambda: control.status().replicas[0].report.hold == "pinned")
    with pytest.raises(TooStale, match="it is pinned"):
        reader.lookup_once("t", ids, max_staleness_s=0.1)

    assert not reader.unpin().is_pinned
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", np.arange(2000))
    assert [(ps.resumed, ps.snapshots) for ps in reader.status().ps] == [(1, 1), (1, 1)]
    assert reader.status().hold == ""


def test_a_replica_that_gets_all_rows_again_is_pinned_only_when_it_has_them(servers, monkeypatch):
    cluster = servers.connect()
    cluster.create_tables(table_of(touched_capacity=1000))
    ids = np.random.default_rng(3).choice(2**40, 300_000, replace=False)
    for begin in range(0, ids.size, 50_000):
        push(cluster, ids[begin : begin + 50_000])
    reader = reader_of(servers)
    may_end = threading.Event()
    end = PsCopy._end_snapshot

    def end_later(copy, message):
        may_end.wait(5)
        end(copy, message)

    monkeypatch.setattr(PsCopy, "_end_snapshot", end_later)
    push(cluster, ids[:100_000])  # more changes than the log of either ps holds
    wait_until(lambda: [ps.snapshots for ps in reader.status().ps] == [2, 2])
    with pytest.raises(NotReady, match="ps-0, ps-1 has not sent all rows yet"):
        reader.pin()
    assert reader.status().hold == ""

    may_end.set()
    reader.wait_for_a_version()
    pinned = cluster.pull({"t": ids}).rows["t"]
    assert reader.pin().is_pinned
    assert reader.pin().is_pinned, "again"
    push(cluster, ids[:500])
    np.testing.assert_array_equal(reader.lookup("t", ids), pinned)
    reader.unpin()
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", ids)


def test_a_rolled_back_replica_serves_that_checkpoint_until_it_is_promoted(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    ids = np.arange(1000)
    push(cluster, ids)
    first = cluster.controller.save().path
    old = cluster.pull({"t": ids}).rows["t"]
    push(cluster, ids)
    push(cluster, ids + 1000)
    cluster.controller.save()
    push(cluster, ids + 2000)
    reader = reader_of(servers)
    assert reader.status().rows == 3000

    with pytest.raises(CheckpointNotFound):
        reader.roll_back("model.ckpt-17")
    assert reader.status().rows == 3000
    assert reader.status().hold == ""

    name = first.rpartition("/")[2]
    said = reader.roll_back(name)
    assert (said.checkpoint, said.is_pinned) == (name, True)
    push(cluster, ids)
    np.testing.assert_array_equal(reader.lookup("t", ids), old)
    assert reader.status().rows == 1000
    assert reader.freshness().checkpoint == name
    assert reader.freshness().staleness_s > 0
    assert reader.status().hold == f"rolled back to {name}"

    reader.unpin()
    wait_until(lambda: reader.status().rows == 3000)
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", np.arange(3000))
    assert paths(reader) == [(2, 0), (2, 0)], "of the newest checkpoint, and of the older one"


def test_ctl_pins_rolls_back_and_unpins(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(100))
    name = cluster.controller.save().path.rpartition("/")[2]
    push(cluster, np.arange(200))
    readers = [reader_of(servers, index) for index in range(2)]
    wait_until(
        lambda: sum(each.report.is_ready for each in cluster.controller.status().replicas) == 2
    )

    def run(*words):
        return CliRunner().invoke(ctl, ["--model-dir", str(servers.model_dir), "replicas", *words])

    assert "replica-1 stays at version" in run("pin").output
    assert [reader.status().hold for reader in readers] == ["pinned", "pinned"]
    assert f"replica-0 serves {name}" in run("rollback", name, "--index", "0").output
    assert [reader.status().rows for reader in readers] == [100, 200]
    assert run("rollback", "model.ckpt-99").exit_code == 1
    refused = run("pin", "--index", "7")
    assert refused.exit_code == 1
    assert "there are [0, 1]" in refused.output
    assert run("unpin").output.count("follows the job again") == 2
    wait_until(lambda: readers[0].status().rows == 200)


def test_ctl_drives_all_replicas_that_are_there_and_names_the_dead_one(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(100))
    readers = [reader_of(servers, index) for index in range(3)]
    wait_until(
        lambda: sum(each.report.is_ready for each in cluster.controller.status().replicas) == 3
    )
    servers.stop("replica-1")
    words = ["--model-dir", str(servers.model_dir), "replicas", "pin"]
    done = CliRunner().invoke(ctl, words)
    assert done.exit_code == 1
    assert "replica-0 stays at version" in done.stdout
    assert "replica-2 stays at version" in done.stdout
    assert re.search(r"replicas pin: replica-1: .* cannot be reached", done.stderr)
    assert [readers[index].status().hold for index in (0, 2)] == ["pinned", "pinned"]


def test_a_replica_may_begin_rolled_back(servers):
    cluster = servers.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(100))
    name = cluster.controller.save().path.rpartition("/")[2]
    push(cluster, np.arange(200))
    reader = reader_of(servers, checkpoint=name)
    assert reader.status().rows == 100
    assert reader.freshness().checkpoint == name
    reader.unpin()
    wait_until(lambda: reader.status().rows == 200)


def test_a_replica_that_is_not_ready_cannot_be_pinned(tmp_path):
    with Servers(tmp_path, num_ps=1) as servers:
        servers.start_controller()
        reader = ReplicaReader(servers.start_replica(0).address)
        with pytest.raises(NotReady):
            reader.pin()
        assert reader.status().hold == ""


@pytest.fixture
def fills_the_disk(monkeypatch):
    """Call it, and no copy of an object fits on the disk of this process any more."""

    def is_full(self, url, path, **options):
        Path(path).write_bytes(b"a part of it")
        raise OSError(errno.ENOSPC, "No space left on device", path)

    yield lambda: monkeypatch.setattr(MemoryFileSystem, "get_file", is_full)
    object_stores.forget_memory()


@pytest.fixture
def servers_of_a_store(tmp_path):
    folder = object_stores.new_folder("memory")
    with Servers(tmp_path, num_ps=2, checkpoint_dir=str(folder)) as servers:
        servers.start_controller()
        start_ps(servers)
        yield servers


def test_a_disk_that_is_full_at_the_start_is_said_and_the_ps_send_all_rows(
    servers_of_a_store, fills_the_disk, caplog
):
    cluster = servers_of_a_store.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(1000))
    cluster.controller.save()
    push(cluster, np.arange(500, 1500))
    fills_the_disk()
    reader = reader_of(servers_of_a_store)
    assert "snapshots of the ps" in reader.status().started_from
    assert "no space left on the disk at" in reader.status().started_from
    assert paths(reader) == [(0, 1), (0, 1)]
    assert_serves(reader, cluster, "t", np.arange(1600))
    assert "no checkpoint was loaded" in caplog.text


def test_a_disk_that_is_full_at_a_rollback_is_said_and_the_old_model_is_served(
    servers_of_a_store, fills_the_disk
):
    cluster = servers_of_a_store.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(1000))
    name = cluster.controller.save().path.rpartition("/")[2]
    push(cluster, np.arange(500, 1500))
    reader = reader_of(servers_of_a_store)
    assert reader.status().started_from == f"checkpoint {name}"
    fills_the_disk()
    with pytest.raises(LimitExceeded, match="no space left on the disk at"):
        reader.roll_back(name)
    assert reader.status().hold == ""
    assert not list(scratch.root().glob("megalith-scratch-*/*.arrow"))

    push(cluster, np.arange(2000))
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", np.arange(2100))


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        (ConnectionError("no route to the store"), Unavailable),
        (PermissionError("no"), AccessDenied),
    ],
)
def test_a_store_that_cannot_be_read_at_a_rollback_is_said_and_the_old_model_is_served(
    servers_of_a_store, monkeypatch, fault, refusal
):
    cluster = servers_of_a_store.connect()
    cluster.create_tables(table_of())
    push(cluster, np.arange(1000))
    name = cluster.controller.save().path.rpartition("/")[2]
    reader = reader_of(servers_of_a_store)

    def fails(self, url, path, **options):
        raise fault

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "get_file", fails)
        with pytest.raises(refusal, match=f"{name}.* by this replica: .*{fault}") as refused:
            reader.roll_back(name)
        assert type(refused.value) is refusal
    assert reader.status().hold == ""

    push(cluster, np.arange(2000))
    reader.wait_for_a_version()
    assert_serves(reader, cluster, "t", np.arange(2100))
    reader.roll_back(name)
    assert reader.status().hold == f"rolled back to {name}"
