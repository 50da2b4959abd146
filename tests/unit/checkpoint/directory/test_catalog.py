import shutil

import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.errors import CheckpointDamaged, CheckpointNotFound


def checkpoint(model_dir, step, *, is_newest=True):
    folder = model_dir / f"model.ckpt-{step}"
    folder.mkdir()
    manifest.write(folder, Manifest(step=step, num_ps=1, saved_at_s=1.0, files=()))
    if is_newest:
        catalog.record_latest(model_dir, folder, 1.0)
    return folder


def test_a_directory_that_never_had_a_checkpoint_has_none(tmp_path):
    (tmp_path / "logs").mkdir()
    assert catalog.latest(tmp_path) is None


def test_the_checkpoint_that_the_list_names_is_the_newest_also_if_others_are_newer(tmp_path):
    older = checkpoint(tmp_path, 100)
    checkpoint(tmp_path, 200)
    state = tmp_path / "checkpoint"
    state.write_text(
        state.read_text().replace('path: "model.ckpt-200"', 'path: "model.ckpt-100"', 1)
    )
    assert catalog.latest(tmp_path) == older


def test_a_save_that_ends_meanwhile_and_keeps_one_checkpoint_is_no_error(tmp_path, monkeypatch):
    checkpoint(tmp_path, 100)
    resolved = catalog.resolved

    def end_a_save_before(model_dir, name):
        monkeypatch.setattr(catalog, "resolved", resolved)
        checkpoint(model_dir, 200)
        assert catalog.remove(model_dir, "model.ckpt-100")
        return resolved(model_dir, name)

    monkeypatch.setattr(catalog, "resolved", end_a_save_before)
    assert catalog.latest(tmp_path) == tmp_path / "model.ckpt-200"


def test_older_checkpoints_may_be_removed(tmp_path):
    older = checkpoint(tmp_path, 100)
    newest = checkpoint(tmp_path, 200)
    (older / MANIFEST).unlink()
    older.rmdir()
    assert catalog.latest(tmp_path) == newest


def lose_list(model_dir):
    (model_dir / "checkpoint").unlink()


def empty_list(model_dir):
    (model_dir / "checkpoint").write_bytes(b"")


def garbage_list(model_dir):
    (model_dir / "checkpoint").write_bytes(b"\xff\x00 no list")


def lose_manifest(model_dir):
    (model_dir / "model.ckpt-200" / MANIFEST).unlink()


def lose_folder(model_dir):
    (model_dir / "model.ckpt-200").rename(model_dir.parent / "elsewhere")


@pytest.mark.parametrize(
    ("lose", "error", "named"),
    [
        (
            lose_list,
            CheckpointNotFound,
            "checkpoint is missing, and .* has model.ckpt-100, model.ckpt-200",
        ),
        (empty_list, CheckpointDamaged, "checkpoint names no checkpoint"),
        (garbage_list, CheckpointDamaged, "checkpoint names no checkpoint"),
        (
            lose_manifest,
            CheckpointNotFound,
            "names model.ckpt-200 .*model.ckpt-200/manifest.json is missing",
        ),
        (
            lose_folder,
            CheckpointNotFound,
            "names model.ckpt-200 .*model.ckpt-200/manifest.json is missing",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_ways_out_and_no_older_checkpoint_is_taken_for_it(
    tmp_path, lose, error, named
):
    model_dir = tmp_path / "a model"
    model_dir.mkdir()
    checkpoint(model_dir, 100)
    checkpoint(model_dir, 200)
    lose(model_dir)
    with pytest.raises(error, match=named) as refused:
        catalog.latest(model_dir)
    away = f"'{model_dir}'/checkpoint '{model_dir}'/model.ckpt-* '{model_dir}/moved-away'"
    assert f"mkdir '{model_dir}/moved-away' && mv {away}" in str(refused.value)


def test_entries_of_a_list_without_times_are_kept(tmp_path):
    """Other writers of this format leave them out."""
    text = 'model_checkpoint_path: "model.ckpt-2"\n' + "".join(
        f'all_model_checkpoint_paths: "model.ckpt-{step}"\n' for step in (1, 2)
    )
    (tmp_path / "checkpoint").write_text(text)
    checkpoint(tmp_path, 3)
    written = (tmp_path / "checkpoint").read_text()
    assert all(f'all_model_checkpoint_paths: "model.ckpt-{step}"' in written for step in (1, 2, 3))


def published(model_dir, step, saved_at_s=1.0):
    """A checkpoint that has its name and is not listed, as a controller that dies then leaves
    it."""
    work = catalog.work_directory(model_dir, step, "ab")
    work.mkdir()
    manifest.write(work, Manifest(step=step, num_ps=1, saved_at_s=saved_at_s, files=()))
    return catalog.publish(work, model_dir, step)


def test_checkpoints_that_a_dead_controller_did_not_list_are_found_until_one_is_listed(tmp_path):
    published(tmp_path, 300, saved_at_s=5.0)
    newest = published(tmp_path, 200, saved_at_s=6.0)
    assert catalog.latest(tmp_path) == newest
    catalog.complete_list(tmp_path)
    assert 'model_checkpoint_path: "model.ckpt-200"' in (tmp_path / "checkpoint").read_text()
    published(tmp_path, 400, saved_at_s=7.0)
    catalog.complete_list(tmp_path)
    assert catalog.latest(tmp_path) == newest


def test_a_list_that_was_taken_away_is_still_missed_after_another_save_was_killed(tmp_path):
    checkpoint(tmp_path, 100)
    (tmp_path / "checkpoint").unlink()
    published(tmp_path, 200)
    catalog.complete_list(tmp_path)
    with pytest.raises(
        CheckpointNotFound,
        match=r"checkpoint is missing, and .* has model.ckpt-100, model.ckpt-200",
    ):
        catalog.latest(tmp_path)


@pytest.mark.parametrize(
    "text", ['model_checkpoint_path: ""\n', 'model_checkpoint_path: ""\nall_model_checkpoint_']
)
def test_a_list_that_names_nothing_and_is_not_that_of_a_first_save_is_refused(tmp_path, text):
    published(tmp_path, 100)
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(CheckpointNotFound):
        catalog.latest(tmp_path)


def test_somebodys_file_under_the_name_of_the_list_is_kept_before_the_first_checkpoint_gets_its_name(
    tmp_path,
):
    (tmp_path / "checkpoint").write_text("the only copy of a thesis")
    first = published(tmp_path, 100)
    (kept,) = tmp_path.glob("checkpoint-kept-*")
    assert kept.read_text() == "the only copy of a thesis"
    assert catalog.latest(tmp_path) == first


def test_the_name_of_a_removed_checkpoint_is_not_given_to_another(tmp_path):
    def save():
        folder = published(tmp_path, 0)
        catalog.record_latest(tmp_path, folder, 1.0)
        return folder

    first = save()
    second = save()
    assert (first.name, second.name) == ("model.ckpt-0", "model.ckpt-r1-0")
    shutil.rmtree(first)
    assert save().name == "model.ckpt-r2-0"
    shutil.rmtree(tmp_path / "model.ckpt-r2-0")  # the list still names it
    assert save().name == "model.ckpt-r3-0"
    (tmp_path / "model.ckpt-r11-0").mkdir()  # in no list
    assert save().name == "model.ckpt-r12-0"
    assert published(tmp_path, 1).name == "model.ckpt-1"
