import os

import pytest

from megalith.checkpoint.directory import catalog, exempt_list, listing
from megalith.checkpoint.directory.exempt_list import ExemptList
from megalith.checkpoint.directory.retention import Retention
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest

HOUR_S = 3600.0


def save(model_dir, name, retention, at_s=1.0, *, is_whole=True, needed=(), outdated=""):
    """A checkpoint of that name, saved and kept to the rule; what was removed."""
    folder = model_dir / name
    if not folder.exists():
        folder.mkdir()
        manifest.write(folder, Manifest(step=1, num_ps=1, saved_at_s=at_s, files=()))

    recorded = catalog.record_latest(
        model_dir,
        folder,
        at_s,
        is_whole=is_whole,
        retention=retention,
        needed=needed,
        outdated=outdated,
    )
    return recorded.removed


def listed(model_dir):
    return list(listing.read(model_dir).time_by_name)


def on_disk(model_dir):
    return {path.name.rpartition("-")[2] for path in model_dir.glob("model.ckpt-*")}


def exempt(model_dir, *names):
    (model_dir / exempt_list.FILE).write_text(ExemptList(paths=names).text())


@pytest.mark.golden("G11")
def test_exempt_checkpoints_stay_beside_the_newest_three(tmp_path):
    exempt(tmp_path, "model.ckpt-10", "elsewhere/model.ckpt-20")
    keep_3 = Retention(max_to_keep=3)
    for step in (10, 20, 30, 40, 50):
        assert save(tmp_path, f"model.ckpt-{step}", keep_3) == ()
    assert on_disk(tmp_path) == {"10", "20", "30", "40", "50"}
    assert save(tmp_path, "model.ckpt-60", keep_3) == ("model.ckpt-30",)
    assert on_disk(tmp_path) == {"10", "20", "40", "50", "60"}


@pytest.mark.golden("G11")
def test_of_two_kept_an_exempt_one_comes_on_top(tmp_path):
    exempt(tmp_path, "model.ckpt-2")
    for step in (1, 2, 3, 4):
        save(tmp_path, f"model.ckpt-{step}", Retention(max_to_keep=2))
    assert on_disk(tmp_path) == {"2", "3", "4"}


@pytest.mark.golden("G11")
def test_a_name_that_is_saved_again_is_the_newest_and_the_oldest_of_the_list_goes(tmp_path):
    keep_2 = Retention(max_to_keep=2)
    for name in ("s1", "s2", "s3"):
        save(tmp_path, name, keep_2)
    assert listed(tmp_path) == ["s2", "s3"]
    save(tmp_path, "s2", keep_2)
    assert listed(tmp_path) == ["s3", "s2"]
    save(tmp_path, "s1", keep_2)
    assert listed(tmp_path) == ["s2", "s1"]


@pytest.mark.golden("G11")
def test_with_nothing_to_keep_nothing_is_removed_and_the_newest_is_listed(tmp_path):
    for step in (1, 2, 3):
        assert save(tmp_path, f"model.ckpt-{step}", Retention(max_to_keep=0)) == ()
    assert on_disk(tmp_path) == {"1", "2", "3"}
    assert listed(tmp_path) == ["model.ckpt-3"]


def test_what_was_saved_in_place_of_an_increment_goes_though_all_others_are_kept(tmp_path):
    """One a minute, each of the whole model, would fill any disk."""
    keep_all = Retention(max_to_keep=0)
    save(tmp_path, "model.ckpt-1", keep_all)
    save(tmp_path, "model.ckpt-2", keep_all)
    removed = save(tmp_path, "model.ckpt-3", keep_all, outdated="model.ckpt-2")
    assert removed == ("model.ckpt-2",)
    assert on_disk(tmp_path) == {"1", "3"}
    assert listed(tmp_path) == ["model.ckpt-3"]


@pytest.mark.golden("G11")
def test_the_list_is_recovered_without_what_is_gone(tmp_path):
    keep_3 = Retention(max_to_keep=3)
    for step in (1, 2, 3):
        save(tmp_path, f"model.ckpt-{step}", keep_3)
    (tmp_path / "model.ckpt-1" / "manifest.json").unlink()
    os.rmdir(tmp_path / "model.ckpt-1")
    catalog.recover_list(tmp_path)
    assert listed(tmp_path) == ["model.ckpt-2", "model.ckpt-3"]
    save(tmp_path, "model.ckpt-4", keep_3)
    assert listed(tmp_path) == ["model.ckpt-2", "model.ckpt-3", "model.ckpt-4"]


def test_an_old_checkpoint_that_is_damaged_keeps_no_job_from_its_newest_one(tmp_path, caplog):
    for step in (1, 2):
        save(tmp_path, f"model.ckpt-{step}", Retention(3))
    untimed = listing.read(tmp_path)
    untimed.time_by_name["model.ckpt-1"] = "0.0"
    listing.write(tmp_path, untimed.text())
    (tmp_path / "model.ckpt-1" / "manifest.json").write_text("{")
    catalog.recover_list(tmp_path)
    assert catalog.latest(tmp_path).name == "model.ckpt-2"
    assert listed(tmp_path) == ["model.ckpt-1", "model.ckpt-2"]
    assert "model.ckpt-1 was saved is not known" in caplog.text


@pytest.mark.golden("G11")
def test_of_those_that_leave_the_list_one_is_kept_in_each_period(tmp_path):
    """Monolith's test waits for 0.7 s, saves s1, and saves s2 at once after it."""
    rule = Retention(max_to_keep=2, keep_every_n_hours=0.7 / HOUR_S, began_at_s=100.0)
    removed = []
    for name, at_s in (("s1", 100.75), ("s2", 100.76), ("s3", 101.5), ("s4", 101.6)):
        removed += save(tmp_path, name, rule, at_s)
    assert removed == ["s2"]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"s1", "s3", "s4"}


def test_the_hours_count_on_after_a_restart_and_a_long_pause_keeps_one_and_not_several(tmp_path):
    removed = []
    times_h = [0, 10, 20, 30, 300, 301, 302, 303, 304, 330]
    for number, hours in enumerate(times_h):
        # A process of its own each time, which began just then
        rule = Retention(max_to_keep=1, keep_every_n_hours=24, began_at_s=hours * HOUR_S + 1)
        removed += save(tmp_path, f"model.ckpt-{number}", rule, hours * HOUR_S + 1)
    kept = {times_h[int(number)] for number in on_disk(tmp_path)}
    assert kept == {30, 300, 330}
    assert len(removed) == len(times_h) - len(kept)


def test_hours_of_0_keep_none_for_good(tmp_path):
    rule = Retention(max_to_keep=1, keep_every_n_hours=0, began_at_s=0.0)
    for step in (1, 2, 3):
        save(tmp_path, f"model.ckpt-{step}", rule, step * 1e9)
    assert on_disk(tmp_path) == {"3"}


def test_the_checkpoint_to_start_from_is_never_removed_while_what_follows_is_not_whole(tmp_path):
    keep_2 = Retention(max_to_keep=2)
    save(tmp_path, "model.ckpt-1", keep_2)
    for step in (2, 3, 4, 5):
        save(tmp_path, f"model.ckpt-{step}", keep_2, is_whole=False)
    assert catalog.latest(tmp_path) == tmp_path / "model.ckpt-1"
    assert on_disk(tmp_path) == {"1", "5"}


def test_what_something_depends_on_stays_and_the_next_one_goes(tmp_path):
    keep_2 = Retention(max_to_keep=2)
    for step in (1, 2):
        save(tmp_path, f"model.ckpt-{step}", keep_2)
    assert save(tmp_path, "model.ckpt-3", keep_2, needed=["model.ckpt-1"]) == ("model.ckpt-2",)


def test_a_checkpoint_of_another_directory_leaves_the_list_and_stays(tmp_path):
    other = tmp_path / "other"
    mine = tmp_path / "mine"
    other.mkdir()
    mine.mkdir()
    save(other, "model.ckpt-1", None)
    start = listing.Listing(newest=str(other / "model.ckpt-1"))
    start.time_by_name[str(other / "model.ckpt-1")] = "1.0"
    listing.write(mine, start.text())
    assert catalog.latest(mine) == other / "model.ckpt-1"
    for step in (2, 3):
        assert save(mine, f"model.ckpt-{step}", Retention(max_to_keep=1), 2.0) in (
            (),
            ("model.ckpt-2",),
        )
    assert (other / "model.ckpt-1" / "manifest.json").exists()
    assert listed(mine) == ["model.ckpt-3"]


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_a_line_of_the_list_without_a_name_never_removes_the_directory(tmp_path, name):
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    save(model_dir, "model.ckpt-1", Retention(1))
    edited = listing.read(model_dir)
    edited.time_by_name = {name: "0.0", **edited.time_by_name}
    listing.write(model_dir, edited.text())
    assert save(model_dir, "model.ckpt-2", Retention(2)) == ()
    assert listed(model_dir) == ["model.ckpt-1", "model.ckpt-2"]
    assert on_disk(model_dir) == {"1", "2"}
    assert list(tmp_path.iterdir()) == [model_dir]


def test_nothing_is_removed_while_nobody_can_read_what_is_exempt(tmp_path, caplog):
    (tmp_path / exempt_list.FILE).write_text("{damaged")
    for step in (1, 2, 3):
        assert save(tmp_path, f"model.ckpt-{step}", Retention(max_to_keep=1)) == ()
    assert on_disk(tmp_path) == {"1", "2", "3"}
    assert "which ones are exempt cannot be read" in caplog.text


def test_a_removal_that_was_cut_short_is_finished_by_the_next_controller(tmp_path):
    save(tmp_path, "model.ckpt-1", None)
    (tmp_path / "model.ckpt-1").rename(tmp_path / "removing-model.ckpt-1")
    save(tmp_path, "model.ckpt-2", None)
    catalog.remove_dropped(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "model.ckpt-2"]


@pytest.mark.golden("G11")
def test_a_directory_that_was_moved_is_started_from_and_kept_on(tmp_path):
    before = tmp_path / "before"
    before.mkdir()
    for step in (1, 2):
        save(before, f"model.ckpt-{step}", Retention(max_to_keep=2))
    after = before.rename(tmp_path / "after")
    assert catalog.latest(after) == after / "model.ckpt-2"
    assert save(after, "model.ckpt-3", Retention(max_to_keep=2)) == ("model.ckpt-1",)
    assert listed(after) == ["model.ckpt-2", "model.ckpt-3"]


def test_a_checkpoint_whose_files_cannot_be_removed_is_named(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: None)
    for at_s in range(2):
        save(tmp_path, f"model.ckpt-{at_s}", Retention(1, 0), float(at_s))

    assert "removing-model.ckpt-0 are left, the next controller removes them" in caplog.text
