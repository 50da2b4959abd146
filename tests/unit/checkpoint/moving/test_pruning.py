"""What `prune` removes, and above all what it never does."""

import os
import shutil

import numpy as np
import pytest

from megalith.checkpoint.directory import catalog, exempt_list, listing
from megalith.checkpoint.directory.exempt_list import ExemptList
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.inspection.verification import verify
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.moving import pruning
from megalith.errors import InvalidRequest
from support import checkpoints


@pytest.fixture
def model_dir(tmp_path):
    """Checkpoints of steps 100, 200, 300, 400, the last one the newest."""
    ids = np.arange(10)
    ones = np.ones((10, 3), np.float32)
    stores = checkpoints.stores_with([(checkpoints.ITEM, ids, ones, 7)])
    for step in (100, 200, 300, 400):
        checkpoints.write(stores, tmp_path, step)
    return tmp_path


def folders(model_dir):
    return sorted(path.name for path in model_dir.iterdir() if path.is_dir())


def make_old(path):
    os.utime(path, (1_700_000_000, 1_700_000_000))


def test_a_plan_removes_nothing_and_names_what_goes_and_why_the_others_stay(model_dir):
    before = folders(model_dir)
    planned = pruning.plan(model_dir, keep=2)
    assert [(each.name, each.why) for each in planned.removals] == [
        ("model.ckpt-100", "old"),
        ("model.ckpt-200", "old"),
    ]
    assert [(each.name, each.why) for each in planned.kept] == [
        ("model.ckpt-300", "among the newest"),
        ("model.ckpt-400", "newest in the list"),
    ]
    size = sum(path.stat().st_size for path in (model_dir / "model.ckpt-100").iterdir())
    assert planned.bytes == 2 * size
    assert folders(model_dir) == before


def test_what_goes_leaves_the_list_and_the_rest_is_whole(model_dir):
    pruning.prune(model_dir, keep=2)
    assert folders(model_dir) == ["model.ckpt-300", "model.ckpt-400"]
    listed = listing.read(model_dir)
    assert list(listed.time_by_name) == ["model.ckpt-300", "model.ckpt-400"]
    assert listed.newest == "model.ckpt-400"
    for name in folders(model_dir):
        assert verify(model_dir / name).is_whole


def test_after_a_clock_was_set_back_the_later_steps_stay(tmp_path):
    """Such saves have the time of the newest before them; 1000 is after 999, not before 200."""
    for step in (200, 999, 1000, 1001):
        folder = tmp_path / f"model.ckpt-{step}"
        folder.mkdir()
        manifest.write(folder, Manifest(step=step, num_ps=1, saved_at_s=5.0, files=()))
        catalog.record_latest(tmp_path, folder, 5.0)
    pruning.prune(tmp_path, keep=2)
    assert folders(tmp_path) == ["model.ckpt-1000", "model.ckpt-1001"]


def test_an_exempt_checkpoint_stays_however_old(model_dir):
    exempt = ExemptList(paths=("elsewhere/model.ckpt-100",))
    (model_dir / exempt_list.FILE).write_text(exempt.text())
    pruning.prune(model_dir, keep=1)
    assert folders(model_dir) == ["model.ckpt-100", "model.ckpt-400"]


def test_while_nobody_knows_which_are_exempt_nothing_goes(model_dir):
    (model_dir / exempt_list.FILE).write_text("not of this format at all {")
    with pytest.raises(InvalidRequest, match="monolith_checkpoint cannot be read"):
        pruning.prune(model_dir, keep=1)

    assert len(folders(model_dir)) == 4


def test_the_one_that_the_list_names_stays_although_others_are_newer(model_dir):
    (model_dir / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-100"\n')
    pruning.prune(model_dir, keep=1)
    assert folders(model_dir) == ["model.ckpt-100", "model.ckpt-400"]
    assert catalog.latest(model_dir) == model_dir / "model.ckpt-100"


@pytest.mark.parametrize("is_link", [False, True])
def test_absolute_paths_in_the_list_are_the_folders_beside_it(model_dir, tmp_path_factory, is_link):
    """As other writers of the list spell them."""
    spelled = model_dir
    if is_link:
        spelled = tmp_path_factory.mktemp("other") / "link"
        spelled.symlink_to(model_dir)

    text = listing.read_text(model_dir)
    listing.write(model_dir, text.replace('"model.ckpt-', f'"{spelled}/model.ckpt-'))
    listed = listing.read(model_dir)
    listed.newest = f"{spelled}/model.ckpt-100"
    listing.write(model_dir, listed.text())

    assert catalog.is_newest(model_dir, model_dir / "model.ckpt-100")
    assert catalog.latest(model_dir) == model_dir / "model.ckpt-100"
    assert not catalog.remove(model_dir, "model.ckpt-100")
    pruning.prune(model_dir, keep=1)
    assert folders(model_dir) == ["model.ckpt-100", "model.ckpt-400"]
    assert set(listing.read(model_dir).time_by_name) == {"model.ckpt-100", "model.ckpt-400"}


def test_a_checkpoint_of_another_directory_with_the_same_name_is_another_one(model_dir):
    listed = listing.read(model_dir)
    listed.newest = "/elsewhere/model.ckpt-100"
    listing.write(model_dir, listed.text())
    assert not catalog.is_newest(model_dir, model_dir / "model.ckpt-100")
    pruning.prune(model_dir, keep=1)
    assert folders(model_dir) == ["model.ckpt-400"]


def test_a_damaged_newest_does_not_count_as_kept(model_dir):
    (model_dir / "model.ckpt-400" / MANIFEST).write_text("{")
    pruning.prune(model_dir, keep=1)
    assert folders(model_dir) == ["model.ckpt-300", "model.ckpt-400"]


def test_leftovers_go_unless_they_may_be_a_save_under_way(model_dir):
    for name in ("saving-500-0a1b2c3d", "saving-600-0a1b2c3e", "model.ckpt-50"):
        (model_dir / name).mkdir()
    (model_dir / "saving-money").mkdir()
    make_old(model_dir / "saving-500-0a1b2c3d")
    make_old(model_dir / "model.ckpt-50")
    make_old(model_dir / "saving-money")
    gone = pruning.prune(model_dir, keep=4)
    assert sorted(each.name for each in gone.removals) == ["model.ckpt-50", "saving-500-0a1b2c3d"]
    kept = {each.name: each.why for each in gone.kept}
    assert "under way" in kept["saving-600-0a1b2c3e"]
    assert "saving-money" in folders(model_dir)


def test_a_leftover_whose_files_change_is_a_save_under_way(model_dir):
    """The folder itself is as old as its first file."""
    work = model_dir / "saving-500-0a1b2c3d"
    work.mkdir()
    (work / "table.arrow").write_bytes(b"growing")
    make_old(work)
    assert pruning.prune(model_dir, keep=4).removals == ()


def test_a_link_is_neither_followed_nor_removed(model_dir, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "model.ckpt-100"
    shutil.move(model_dir / "model.ckpt-100", elsewhere)
    (model_dir / "model.ckpt-100").symlink_to(elsewhere)
    pruning.prune(model_dir, keep=1)
    assert (elsewhere / MANIFEST).exists()
    assert (model_dir / "model.ckpt-100").is_symlink()


def test_at_least_one_is_kept(model_dir):
    with pytest.raises(InvalidRequest, match="at least 1"):
        pruning.plan(model_dir, keep=0)


def test_a_checkpoint_that_became_the_newest_meanwhile_is_not_removed(model_dir):
    assert not catalog.remove(model_dir, "model.ckpt-400")
    assert catalog.latest(model_dir) == model_dir / "model.ckpt-400"
