import pytest

from megalith.checkpoint.directory import catalog, exempt_list, listing, users
from megalith.checkpoint.directory.retention import Retention
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.moving import pruning
from megalith.checkpoint.starting import override
from megalith.errors import CheckpointDamaged, CheckpointNotFound


def checkpoint(model_dir, step, at_s, retention=None):
    folder = model_dir / f"model.ckpt-{step}"
    folder.mkdir()
    manifest.write(folder, Manifest(step=step, num_ps=1, saved_at_s=at_s, files=()))
    catalog.record_latest(model_dir, folder, at_s, retention=retention)
    return folder


@pytest.fixture
def source(tmp_path):
    """A directory with checkpoints of the steps 0, 30 and 61."""
    source = tmp_path / "source"
    source.mkdir()
    for at_s, step in enumerate((0, 30, 61)):
        checkpoint(source, step, float(at_s + 1))
    exempt_list.create(source)
    return source


@pytest.fixture
def model_dir(tmp_path):
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


@pytest.mark.golden("G10")
def test_a_job_starts_from_the_named_checkpoint_of_another_directory(source, model_dir):
    override.apply(model_dir, "model.ckpt-30", str(source))
    assert catalog.latest(model_dir) == source / "model.ckpt-30"
    assert (model_dir / "restore_ckpt").read_text() == str(source / "model.ckpt-30")
    assert exempt_list.read(model_dir).paths == (str(source / "model.ckpt-30"),)


def test_an_exempt_list_that_cannot_be_read_is_not_replaced_by_the_choice(source, model_dir):
    file = model_dir / exempt_list.FILE
    file.write_text('exempt_model_checkpoint_path: "model.ckpt-7"\n')
    with pytest.raises(CheckpointDamaged, match="monolith_checkpoint; correct it"):
        override.apply(model_dir, "model.ckpt-30", str(source))
    assert file.read_text() == 'exempt_model_checkpoint_path: "model.ckpt-7"\n'


@pytest.mark.parametrize("has_own_of_that_step", [False, True])
def test_started_again_with_the_same_settings_the_job_goes_on_with_its_own_checkpoint(
    source, model_dir, has_own_of_that_step
):
    override.apply(model_dir, "model.ckpt-30", str(source))
    if has_own_of_that_step:
        checkpoint(model_dir, 30, 90.0)
    own = checkpoint(model_dir, 70, 100.0)
    override.apply(model_dir, "model.ckpt-30", str(source))
    assert catalog.latest(model_dir) == own


def test_without_a_name_it_is_the_newest_and_only_a_directory_without_a_list_takes_it(
    source, model_dir
):
    override.apply(model_dir, source_dir=str(source))
    assert catalog.latest(model_dir) == source / "model.ckpt-61"
    own = checkpoint(model_dir, 70, 100.0)
    override.apply(model_dir, source_dir=str(source))
    assert catalog.latest(model_dir) == own


def test_the_checkpoint_of_the_other_directory_is_never_removed(source, model_dir):
    override.apply(model_dir, source_dir=str(source))
    for number in range(3):
        folder = model_dir / f"model.ckpt-{100 + number}"
        folder.mkdir()
        manifest.write(folder, Manifest(step=1, num_ps=1, saved_at_s=9.0, files=()))
        catalog.record_latest(model_dir, folder, 9.0 + number, retention=Retention(1, 0.0))
    assert (source / "model.ckpt-61" / "manifest.json").exists()
    assert {path.name for path in model_dir.glob("model.ckpt-*")} == {"model.ckpt-102"}


def test_going_back_is_done_once_and_a_choice_of_another_checkpoint_is_a_new_one(source):
    override.apply(source, "model.ckpt-30")
    assert catalog.latest(source).name == "model.ckpt-30"
    newer = checkpoint(source, 40, 50.0)
    override.apply(source, "model.ckpt-30")
    assert catalog.latest(source) == newer
    override.apply(source, "somewhere/model.ckpt-0")
    assert catalog.latest(source).name == "model.ckpt-0"
    assert list(listing.read(source).time_by_name) == [
        "model.ckpt-0",
        "model.ckpt-30",
        "model.ckpt-61",
        "model.ckpt-40",
    ]


def test_a_checkpoint_that_left_the_list_but_not_the_disk_can_be_gone_back_to(source):
    listed = listing.read(source)
    del listed.time_by_name["model.ckpt-0"]
    listing.write(source, listed.text())
    override.apply(source, "model.ckpt-0")
    assert catalog.latest(source).name == "model.ckpt-0"


def test_a_checkpoint_that_is_kept_for_good_stays_after_going_back_to_it(tmp_path):
    day_s = 24 * 3600.0
    rule = Retention(max_to_keep=1, keep_every_n_hours=24.0, began_at_s=1.0)
    for number in range(5):
        checkpoint(tmp_path, number, day_s * (1 + number), rule)

    assert listing.read(tmp_path).newest == "model.ckpt-4"
    assert (tmp_path / "model.ckpt-1" / "manifest.json").exists(), "it left the list for good"
    override.apply(tmp_path, "model.ckpt-1")
    assert catalog.latest(tmp_path).name == "model.ckpt-1"
    for number in range(5, 8):
        checkpoint(tmp_path, number, 5 * day_s + number, rule)

    assert catalog.latest(tmp_path).name == "model.ckpt-7"
    assert (tmp_path / "model.ckpt-1" / "manifest.json").exists()


def test_the_newest_one_by_name_changes_nothing_but_the_marker(source):
    before = (source / "checkpoint").read_text()
    override.apply(source, "model.ckpt-61")
    assert (source / "checkpoint").read_text() == before
    assert (source / "restore_ckpt").read_text() == "model.ckpt-61"


@pytest.mark.parametrize("name", ["model.ckpt-31", "../other/model.ckpt-31"])
def test_a_checkpoint_that_does_not_exist_stops_the_start_and_changes_nothing(
    source, model_dir, name
):
    before = (source / "checkpoint").read_text()
    for at, other in ((source, ""), (model_dir, str(source))):
        with pytest.raises(CheckpointNotFound, match=r"has model.ckpt-0, model.ckpt-30"):
            override.apply(at, name, other)
        assert not (at / "restore_ckpt").exists()
    assert (source / "checkpoint").read_text() == before
    assert listing.read_text(model_dir) is None


def test_a_directory_without_checkpoints_to_start_from_is_named(tmp_path, model_dir):
    with pytest.raises(CheckpointNotFound, match="empty/checkpoint names no checkpoint"):
        override.apply(model_dir, source_dir=str(tmp_path / "empty"))


def test_what_another_job_starts_from_stays_until_that_job_has_saved(source, model_dir):
    override.apply(model_dir, "model.ckpt-30", str(source))
    for at_s, step in enumerate((70, 80, 90)):
        folder = source / f"model.ckpt-{step}"
        folder.mkdir()
        manifest.write(folder, Manifest(step=step, num_ps=1, saved_at_s=10.0 + at_s, files=()))
        catalog.record_latest(source, folder, 10.0 + at_s, retention=Retention(1, 0))

    assert users.in_use(source) == {"model.ckpt-30"}
    kept = {each.name: each.why for each in pruning.plan(source, 1).kept}
    assert kept["model.ckpt-30"] == "another job starts from it"
    assert catalog.latest(model_dir) == source / "model.ckpt-30"
    assert not (source / "model.ckpt-0").exists(), "the others go as ever"

    checkpoint(model_dir, 31, 100.0)
    assert users.in_use(source) == set()
    assert list(source.glob("used_by-*")) == []


def test_a_checkpoint_stays_while_the_list_of_its_user_cannot_be_seen(source, model_dir):
    override.apply(model_dir, "model.ckpt-30", str(source))
    (model_dir / "checkpoint").unlink()
    assert users.in_use(source) == {"model.ckpt-30"}


@pytest.mark.parametrize("user", ["hdfs://cluster/model", "/dev/null/model"])
def test_a_user_whose_list_cannot_be_read_does_not_fail_the_saves_of_others(source, user, caplog):
    path = source / "model.ckpt-30"
    users.note(source, str(path), user)
    folder = source / "model.ckpt-90"
    folder.mkdir()
    manifest.write(folder, Manifest(step=90, num_ps=1, saved_at_s=10.0, files=()))
    recorded = catalog.record_latest(source, folder, 10.0, retention=Retention(2, 0))
    assert recorded.removed == ("model.ckpt-0",)
    assert users.in_use(source) == {"model.ckpt-30"}
    assert f"whether the job of {user} still starts from it is not known" in caplog.text
