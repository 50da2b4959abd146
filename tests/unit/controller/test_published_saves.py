"""A checkpoint exists once the list names it, whatever fails on the way."""

import errno
import itertools

import pytest

from megalith.checkpoint.directory import catalog, listing
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.controller.saving.saves import Saver
from megalith.errors import NotReady, SaveFailed
from support.saves import answer_both, everything_in


def no_space(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["write", "publish", "record_latest"])
def test_a_disk_that_is_full_at_any_step_leaves_the_old_checkpoint_and_nothing_else(
    saver, cluster, tmp_path, monkeypatch, step
):
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save()
    before = everything_in(tmp_path)
    monkeypatch.setattr(manifest if step == "write" else catalog, step, no_space)
    with pytest.raises(SaveFailed, match="No space left on device"):
        saver.save()
    assert everything_in(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model.ckpt-12"]
    monkeypatch.undo()
    assert catalog.latest(tmp_path).name == "model.ckpt-12"
    assert saver.save().path.name == "model.ckpt-r1-12"


def test_a_checkpoint_that_the_list_names_stays_though_the_list_cannot_be_synced(
    saver, cluster, tmp_path, monkeypatch
):
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save()
    record = catalog.record_latest

    def record_and_fail(*arguments):
        record(*arguments)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(catalog, "record_latest", record_and_fail)
    saved = saver.save()
    assert catalog.latest(tmp_path) == saved.path
    assert manifest.read(saved.path).rows == 6
    assert saver.last.error == ""


def test_a_checkpoint_that_the_list_may_name_stays_though_the_list_cannot_be_read_again(
    saver, cluster, tmp_path, monkeypatch
):
    """The process runs out of file descriptors right after the list was replaced."""
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save()
    state_text = listing.read_text
    record = catalog.record_latest

    def too_many_files(*arguments):
        raise OSError(errno.EMFILE, "Too many open files")

    def record_and_fail(*arguments):
        record(*arguments)
        monkeypatch.setattr(listing, "read_text", too_many_files)
        too_many_files()

    monkeypatch.setattr(catalog, "record_latest", record_and_fail)
    with pytest.raises(SaveFailed, match=r"model.ckpt-r1-12 is complete and stays, .* Too many"):
        saver.save()
    monkeypatch.setattr(listing, "read_text", state_text)
    assert catalog.latest(tmp_path).name == "model.ckpt-r1-12"
    assert manifest.read(tmp_path / "model.ckpt-r1-12").rows == 6


def test_a_checkpoint_that_the_list_names_as_an_older_one_stays_too(
    saver, cluster, tmp_path, monkeypatch
):
    cluster.on_order = lambda order: answer_both(saver, order)

    def record_and_fail(model_dir, folder, *arguments):
        text = (
            f'model_checkpoint_path: "model.ckpt-99"\nall_model_checkpoint_paths: "{folder.name}"'
        )
        (model_dir / "checkpoint").write_text(text + "\n")
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(catalog, "record_latest", record_and_fail)
    saver.save()
    assert manifest.read(tmp_path / "model.ckpt-12").rows == 6


@pytest.mark.parametrize("moment", ["before it is published", "before it is listed"])
def test_a_controller_that_was_replaced_during_a_save_publishes_nothing(
    saver, cluster, tmp_path, moment
):
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save()
    before = everything_in(tmp_path)
    looks = []

    def check_current():
        looks.append(sorted(path.name for path in tmp_path.glob("model.ckpt-*")))
        if len(looks) == ["before it is published", "before it is listed"].index(moment) + 1:
            raise NotReady("a newer controller serves it")

    cluster.check_current = check_current
    with pytest.raises(NotReady, match="a newer controller"):
        saver.save()
    assert len(looks[-1]) == (1 if moment == "before it is published" else 2)
    assert everything_in(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model.ckpt-12"]


def test_a_checkpoint_older_than_the_newest_of_the_list_does_not_become_the_newest(
    cluster, tmp_path, caplog
):
    """A controller that was paused in a save, on a file system where it cannot see another one."""
    times = itertools.count(100.0)
    saver = Saver(cluster, tmp_path, timeout_s=60.0, clock=lambda: next(times), appear_s=0.0)
    newer = tmp_path / "model.ckpt-500"

    def paused(order):
        answer_both(saver, order)
        newer.mkdir()
        manifest.write(newer, Manifest(step=500, num_ps=2, saved_at_s=500.0, files=()))
        catalog.record_latest(tmp_path, newer, 500.0)

    cluster.on_order = paused
    saver.save()
    assert "model.ckpt-12 is saved, but a newer checkpoint was saved into" in caplog.text
    assert catalog.latest(tmp_path) == newer
    assert catalog.is_listed(tmp_path, tmp_path / "model.ckpt-12")
    cluster.on_order = lambda order: answer_both(saver, order)
    later = saver.save()  # by a clock that is behind: it is the newest all the same
    assert catalog.latest(tmp_path) == later.path
    assert manifest.read(later.path).saved_at_s == 500.0
