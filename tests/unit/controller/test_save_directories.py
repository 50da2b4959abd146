"""Saves into other directories than the job's own, and what is removed at a start."""

import os

import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.layout import manifest
from megalith.controller.saving import leftovers
from megalith.controller.saving.saves import Saver
from megalith.errors import ModelDirInUse
from support.saves import CONTENT, answer_both, everything_in


def test_a_save_may_go_to_another_directory(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    saved = saver.save(str(tmp_path / "elsewhere"))
    assert catalog.latest(tmp_path / "elsewhere") == saved.path
    assert catalog.latest(tmp_path) is None


def test_the_own_model_directory_under_another_name_is_the_own_one(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    other_name = tmp_path.parent / "link"
    other_name.symlink_to(tmp_path)
    assert saver.save(str(other_name)).path == tmp_path / "model.ckpt-12"


def test_what_own_saves_of_a_dead_controller_left_is_removed_and_nothing_else(
    saver, cluster, tmp_path, caplog
):
    cluster.on_order = lambda order: answer_both(saver, order)
    good = saver.save()
    own = catalog.work_directory(tmp_path, 13, "0a1b2c3d")
    foreign = catalog.work_directory(tmp_path, 13, "0a1b2c3d", is_own=False)
    somebodys = tmp_path / "saving-money"
    for folder in (own, foreign, somebodys):
        folder.mkdir()
        (folder / MANIFEST).write_bytes(CONTENT)
    link = tmp_path / "saving-14-0a1b2c3e"
    link.symlink_to(somebodys)
    kept = everything_in(good.path) | everything_in(foreign) | everything_in(somebodys)
    leftovers.remove_leftovers(tmp_path)
    assert not own.exists()
    assert everything_in(good.path) | everything_in(foreign) | everything_in(somebodys) == kept
    assert f"removing {own}, left of a save whose controller died" in caplog.text
    assert f"{foreign} is a save of another job, or left of one" in caplog.text


def test_files_of_killed_writes_are_removed_once_nobody_can_be_writing_them(tmp_path):
    names = ("checkpoint-tmp-0a1b2c3d", "controller_journal.json-tmp-99999999")
    others = ("notes-tmp-old", "checkpoint", "checkpoint-tmp-0a1b2c3d4", "young-tmp-0a1b2c3d")
    for name in (*names, ".write-probe-0a1b2c3d", *others):
        (tmp_path / name).write_bytes(CONTENT)
        if not name.startswith("young"):
            os.utime(tmp_path / name, (1.0, 1.0))
    (tmp_path / "folder-tmp-0a1b2c3d").mkdir()
    leftovers.remove_leftovers(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*others, "folder-tmp-0a1b2c3d"}


def test_a_save_that_another_job_is_writing_into_this_directory_outlives_a_start_here(
    cluster, tmp_path
):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    saver = Saver(cluster, theirs, timeout_s=60.0, appear_s=0.0)
    cluster.on_order = lambda order: (answer_both(saver, order), leftovers.remove_leftovers(ours))
    saved = saver.save(str(ours))
    assert saved.path == ours / "model.ckpt-12"
    assert all((saved.path / item.name).exists() for item in manifest.read(saved.path).files)


def become_a_job(directory, name):
    """Leave in the directory what a job leaves there."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.mkdir() if name == "controller.generation" else path.touch()


JOB_FILES = [
    "controller.lock",
    "controller.generation",
    "controller_state.json",
    "controller_server_addr.txt",
]


@pytest.mark.parametrize("name", JOB_FILES)
def test_a_save_into_the_model_directory_of_another_job_is_refused_and_changes_nothing(
    saver, cluster, tmp_path, name
):
    cluster.on_order = lambda order: answer_both(saver, order)
    theirs = tmp_path / "theirs"
    saver.save(str(theirs))  # no job is there yet
    become_a_job(theirs, name)
    before = everything_in(theirs)
    with pytest.raises(
        ModelDirInUse, match=r"theirs: it is the model directory of another job.*choose a directory"
    ):
        saver.save(str(theirs))
    assert everything_in(theirs) == before
    assert sorted(path.name for path in theirs.iterdir()) == sorted(
        ["checkpoint", "model.ckpt-12", name]
    )
    assert len(cluster.orders) == 1
    assert saver.last.error.startswith("cannot save into")


def test_a_save_into_a_directory_in_which_a_job_starts_meanwhile_leaves_nothing_there(
    saver, cluster, tmp_path
):
    theirs = tmp_path / "theirs"
    cluster.on_order = lambda order: (
        answer_both(saver, order),
        become_a_job(theirs, "controller.lock"),
    )
    with pytest.raises(ModelDirInUse):
        saver.save(str(theirs))
    assert [path.name for path in theirs.iterdir()] == ["controller.lock"]


def test_the_own_model_directory_is_saved_into_by_name_too(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    become_a_job(tmp_path, "controller.lock")
    assert saver.save(str(tmp_path)).path == tmp_path / "model.ckpt-12"
