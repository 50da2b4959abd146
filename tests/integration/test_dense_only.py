"""Dense-only saves: the variables alone, on their own clock, through servers and SDK."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from megalith.checkpoint.directory import catalog, listing
from megalith.checkpoint.format import DENSE_ONLY, FileKind
from megalith.checkpoint.inspection.details import details
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.storage import files as stored
from megalith.checkpoint.storage.location import locate
from megalith.client import Segment, Sgd, TableConfig, VariableConfig, Zeros
from megalith.control import Controller
from megalith.errors import CheckpointNotFound, InvalidSetting
from support import object_stores
from support.servers import Servers
from support.waiting import wait_until

IDS = np.arange(1000)
TABLE = TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),))
LARGE = np.arange(60_000, dtype=np.float32).reshape(6000, 10)  # in parts, from two servers on
OFTEN = {"dense_save_every_s": 0.2, "increment_every_s": 0.0, "save_every_s": 0.0}


def job_of(servers):
    return Controller(servers.controller.address, None, 60)


def create(servers):
    servers.start_all()
    cluster = servers.connect()
    cluster.create_tables(TABLE)
    cluster.create_variables(
        VariableConfig("w", np.zeros(3, np.float32)), VariableConfig("large", LARGE)
    )
    return cluster


def push_one(cluster):
    rows = np.ones((IDS.size, 1), np.float32)
    cluster.push({"t": (IDS, rows)}, add_to_variables={"w": np.ones(3, np.float32)})


def names_in(directory):
    return sorted(path.name for path in directory.glob("model.ckpt-*"))


def wait_for_dense(directory, number):
    wait_until(lambda: len(names_in(directory)) >= number, what=f"{number} dense-only checkpoints")
    return catalog.latest(directory)


def check_round_trip(model_dir, folder, **settings):
    """Variables of a dense-only checkpoint are restored equal, and the rows are the full one's."""
    dense_dir = folder / DENSE_ONLY
    with Servers(model_dir, num_ps=2, **OFTEN, **settings) as servers:
        cluster = create(servers)
        push_one(cluster)
        wait_until(lambda: job_of(servers).status().last_dense_save is not None)
        full = locate(job_of(servers).save().path)
        before = job_of(servers).status().last_dense_save.path
        push_one(cluster)
        wait_until(lambda: job_of(servers).status().last_dense_save.path != before)
        last = job_of(servers).status().last_dense_save
        assert (last.error, last.rows) == ("", 0)
        dense = locate(last.path)
        assert dense.parent == dense_dir

    content = manifest.read(dense)
    assert content.dense_only
    assert {file.kind for file in content.files} == {FileKind.VARIABLES}
    assert not content.cursors
    assert verify(dense).is_whole
    found = details(dense)
    assert not found.tables
    assert sorted(each.name for each in found.variables) == ["large", "w"]
    assert not (dense_dir / "ckpt.info-0").exists()
    assert catalog.latest(folder) == full, "a start takes the full checkpoint"
    pushes = dense_pushes(dense)

    with Servers(model_dir, num_ps=3, restore_dense=str(dense), **settings) as servers:
        servers.start_all()
        pulled = servers.connect().pull({"t": IDS}, ["w", "large"])
        np.testing.assert_array_equal(pulled.rows["t"], np.full((1000, 1), -1, np.float32))
        np.testing.assert_array_equal(pulled.variables["w"], np.full(3, pushes, np.float32))
        np.testing.assert_array_equal(pulled.variables["large"], LARGE)
        (note,) = job_of(servers).status().start_notes
        assert note == f"variables of {dense}, as --restore-dense says"


def dense_pushes(dense):
    """How many pushes the variable `w` has seen, read with nothing but pyarrow."""
    for file in manifest.read(dense).files:
        with stored.fetched(dense / file.name) as copy, pa.OSFile(str(copy)) as source:
            for row in pa.ipc.open_file(source).read_all().to_pylist():
                if row["name"] == "w":
                    return np.frombuffer(row["value"], np.float32)[0]

    raise AssertionError("no file has the variable w")


def test_variables_come_back_from_a_dense_only_checkpoint_and_rows_do_not(tmp_path):
    check_round_trip(tmp_path, tmp_path)


def test_dense_only_checkpoints_on_an_object_store(tmp_path):
    with object_stores.s3_server() as environment, object_stores.set_environment(environment):
        store = object_stores.new_folder("s3")
        check_round_trip(tmp_path, store, checkpoint_dir=str(store))


def test_the_list_is_recovered_and_the_oldest_go(tmp_path):
    dense_dir = tmp_path / DENSE_ONLY
    settings = {**OFTEN, "max_to_keep": 2, "keep_every_n_hours": 0.0}
    for _ in range(2):
        with Servers(tmp_path, num_ps=1, **settings) as servers:
            cluster = create(servers)
            full = Path(job_of(servers).save().path)
            for _ in range(3):
                newest = catalog.latest(dense_dir)
                push_one(cluster)
                wait_until(lambda: catalog.latest(dense_dir) != newest)  # noqa: B023

            wait_until(lambda: len(names_in(dense_dir)) == 2)

    assert sorted(listing.read(dense_dir).time_by_name) == names_in(dense_dir)
    assert (dense_dir / "monolith_checkpoint").exists()
    assert full.exists(), "dense-only saves remove no full checkpoint"
    names = [catalog.step_of(name) for name in names_in(dense_dir)]
    assert names == [0, 0]
    assert "model.ckpt-r5-0" in names_in(dense_dir), "no name came back after the restart"


def test_nothing_new_is_not_saved_again(tmp_path):
    dense_dir = tmp_path / DENSE_ONLY
    with Servers(tmp_path, num_ps=1, **OFTEN) as servers:
        push_one(create(servers))
        wait_until(lambda: job_of(servers).status().last_dense_save is not None)
        ended = job_of(servers).status().last_dense_save.ended_at_s
        wait_until(lambda: job_of(servers).status().up_s > 3)
        assert len(names_in(dense_dir)) <= 2
        assert job_of(servers).status().last_dense_save.ended_at_s <= ended + 2


def test_a_dense_save_that_fails_is_said_and_full_saves_go_on(tmp_path):
    (tmp_path / DENSE_ONLY).write_text("in the way")
    with Servers(tmp_path, num_ps=1, **OFTEN) as servers:
        push_one(create(servers))
        wait_until(lambda: job_of(servers).status().last_dense_save is not None)
        assert "cannot write the checkpoint" in job_of(servers).status().last_dense_save.error
        assert Path(job_of(servers).save().path).exists()


def test_no_job_starts_from_a_dense_only_checkpoint(tmp_path):
    with Servers(tmp_path / "model", num_ps=1, **OFTEN) as servers:
        push_one(create(servers))
        dense = wait_for_dense(tmp_path / "model" / DENSE_ONLY, 1)

    for settings in ({"restore_dir": str(dense.parent)}, {}):
        model_dir = tmp_path / "other" if settings else dense.parent
        with (
            pytest.raises(CheckpointNotFound, match="it has variables and no rows"),
            Servers(model_dir, num_ps=1, **settings) as servers,
        ):
            servers.start_all()

    assert listing.read_text(tmp_path / "other") is None, "nothing is half done"


def test_a_path_without_all_variables_is_refused(tmp_path):
    with Servers(tmp_path, num_ps=1, **OFTEN) as servers:
        cluster = create(servers)
        push_one(cluster)
        dense = wait_for_dense(tmp_path / DENSE_ONLY, 1)
        cluster.create_variables(VariableConfig("newer", np.zeros(2, np.float32)))
        job_of(servers).save()

    for path, complaint in ((dense, "it lacks variables of .*newer"), (dense.parent, "one check")):
        with (
            pytest.raises(InvalidSetting, match=complaint),
            Servers(tmp_path, num_ps=1, restore_dense=str(path)) as servers,
        ):
            servers.start_all()
