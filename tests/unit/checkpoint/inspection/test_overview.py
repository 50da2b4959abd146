"""What `ls` and `show` say of a model directory and of a checkpoint."""

import shutil

import numpy as np
import pytest

from megalith.checkpoint.format import LIST, MANIFEST
from megalith.checkpoint.inspection.details import details
from megalith.checkpoint.inspection.overview import FolderStanding, overview
from megalith.errors import CheckpointDamaged, CheckpointNotFound
from support import checkpoints

IDS = np.arange(40) * 0x0123456789ABCDE


def stores():
    ones = np.ones((IDS.size, 3), np.float32)
    wide = np.ones((IDS.size, 4), np.float32)
    rows = [(checkpoints.ITEM, IDS, ones, 1234), (checkpoints.USER, IDS, wide, 1234)]
    return checkpoints.stores_with(rows, {"w": np.ones(4, np.float32)})


def test_every_checkpoint_of_a_directory_is_listed_with_what_it_is(tmp_path):
    for step in (100, 200, 300, 400):
        checkpoints.write(stores(), tmp_path, step)

    (tmp_path / "model.ckpt-200" / MANIFEST).unlink()
    (tmp_path / "model.ckpt-300" / MANIFEST).write_text("{")
    unlisted = tmp_path / "model.ckpt-r1-400"
    shutil.copytree(tmp_path / "model.ckpt-400", unlisted)
    (tmp_path / "saving-500-0a1b2c3d").mkdir()
    shutil.rmtree(tmp_path / "model.ckpt-100")

    found = {entry.name: entry for entry in overview(tmp_path).entries}
    assert {name: entry.standing for name, entry in found.items()} == {
        "model.ckpt-100": FolderStanding.MISSING,
        "model.ckpt-200": FolderStanding.INCOMPLETE,
        "model.ckpt-300": FolderStanding.DAMAGED,
        "model.ckpt-400": FolderStanding.COMPLETE,
        "model.ckpt-r1-400": FolderStanding.COMPLETE,
        "saving-500-0a1b2c3d": FolderStanding.INCOMPLETE,
    }
    newest = found["model.ckpt-400"]
    assert (newest.step, newest.rows, newest.is_newest, newest.is_listed) == (400, 80, True, True)
    assert newest.saved_at_s == 1_790_000_400
    assert newest.bytes == sum(
        path.stat().st_size for path in (tmp_path / "model.ckpt-400").iterdir()
    )
    again = found["model.ckpt-r1-400"]
    assert (again.step, again.is_newest, again.is_listed) == (400, False, False)
    assert "is not JSON" in found["model.ckpt-300"].problem


def test_an_empty_directory_has_none_and_a_missing_one_is_an_error(tmp_path):
    assert overview(tmp_path).entries == ()
    with pytest.raises(CheckpointNotFound, match="is no directory"):
        overview(tmp_path / "nothing")


def test_details_name_tables_segments_variables_and_routing(tmp_path):
    path = checkpoints.write(stores(), tmp_path, 120)
    found = details(path)
    assert (found.step, found.num_ps, found.rows) == (120, 2, 80)
    item, user = found.tables
    assert (item.name, item.rows, item.data_time_s) == ("item", 40, 1234)
    assert [(each.dim, each.optimizer) for each in item.segments] == [(1, "ftrl"), (2, "adagrad")]
    assert (item.filter_bytes, item.admission) == (None, "")
    assert user.admission == "sliding_hash_filter"
    assert user.filter_bytes > 0
    (w,) = found.variables
    assert (w.name, w.dtype, w.shape, w.parts, w.optimizer) == ("w", "float32", [4], 1, "adagrad")
    assert {file.name for file in found.files} | {MANIFEST} == {
        each.name for each in path.iterdir()
    }


def test_details_of_a_checkpoint_with_a_missing_file_name_it(tmp_path):
    path = checkpoints.write(stores(), tmp_path, 120)
    missing = next(path.glob("table-*"))
    missing.unlink()
    with pytest.raises(CheckpointDamaged, match=f"{missing.name} is missing"):
        details(path)

    assert (tmp_path / LIST).exists()
