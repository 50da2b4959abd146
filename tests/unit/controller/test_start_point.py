import shutil
import threading
from dataclasses import replace

import pytest

from megalith.checkpoint.directory import catalog, increments
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest, ShardFile
from megalith.checkpoint.starting import override
from megalith.controller.saving.start_point import StartPoint
from megalith.errors import CheckpointDamaged, CheckpointNotFound
from megalith.wire.reports import RestoreReport


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of 300 rows in two files."""
    folder = tmp_path / "model.ckpt-7"
    folder.mkdir()
    files = tuple(
        ShardFile(name, "table", "t", rows, 1, "00") for name, rows in (("a", 100), ("b", 200))
    )
    saved = Manifest(step=7, num_ps=2, saved_at_s=1.0, files=files, save_id="s")
    manifest.write(folder, saved)
    catalog.record_latest(tmp_path, folder, 1.0)
    return folder


def test_a_new_model_directory_starts_empty(tmp_path):
    start_point = StartPoint(tmp_path)
    assert start_point.find() is None
    assert start_point.fault([RestoreReport(), RestoreReport()], is_first=True) == ""


def test_rows_of_a_save_that_this_controller_has_not_read_are_a_fault(tmp_path, saved):
    """Nobody could tell whether all of them are there."""
    start_point = StartPoint(tmp_path)
    start_point.find()
    unknown = RestoreReport(path=str(tmp_path / "model.ckpt-8"), rows=150, saved_at_s=2.0)
    said = start_point.fault([unknown, unknown], is_first=False)
    assert "restored 300 rows from" in said
    assert "does not know how many there are; start the job again" in said


def test_a_checkpoint_of_a_running_job_that_is_gone_with_its_list_is_no_reason_to_start_empty(
    tmp_path, saved
):
    start_point = StartPoint(tmp_path)
    assert start_point.find().directory == saved
    shutil.rmtree(saved)
    (tmp_path / "checkpoint").unlink()
    assert StartPoint(tmp_path).find() is None
    with pytest.raises(CheckpointNotFound, match=r"model.ckpt-7 is gone, and so is .*/checkpoint"):
        start_point.find()


def test_a_checkpoint_that_a_job_wrote_itself_is_not_forgotten_either(tmp_path, saved):
    start_point = StartPoint(tmp_path / "empty")
    start_point.saved(tmp_path / "empty" / "model.ckpt-9")
    with pytest.raises(CheckpointNotFound, match=r"model.ckpt-9 is gone"):
        start_point.find()


def test_a_manifest_that_is_garbage_is_named_with_the_ways_out(tmp_path, saved):
    (saved / "manifest.json").write_text("{")
    with pytest.raises(
        CheckpointDamaged,
        match=r"manifest.json is not JSON.*to start with an empty model on purpose",
    ):
        StartPoint(tmp_path).find()


@pytest.mark.parametrize(("expired", "left_out"), [(0, 0), (30, 0), (0, 40), (30, 40)])
def test_rows_expired_and_left_out_add_up_to_those_of_the_manifest(
    tmp_path, saved, expired, left_out
):
    start_point = StartPoint(tmp_path)
    start_point.find()
    first = RestoreReport(str(saved), 7, saved_at_s=1.0, rows=100 - expired, expired=expired)
    second = RestoreReport(str(saved), 7, saved_at_s=1.0, rows=200 - left_out, left_out=left_out)
    assert start_point.fault([first, second], is_first=True) == ""


def test_a_row_less_is_a_fault_that_gives_the_numbers(tmp_path, saved):
    start_point = StartPoint(tmp_path)
    start_point.find()
    restored = [
        RestoreReport(str(saved), 7, saved_at_s=1.0, rows=90, expired=9),
        RestoreReport(str(saved), 7, saved_at_s=1.0, rows=199, left_out=1),
    ]
    assert start_point.fault(restored, is_first=True) == (
        f"{saved} has 300 rows, but 2 parameter servers restored 289, found 9 expired and left 1 out: "
        "1 row is missing"
    )


def test_servers_that_start_together_start_from_one_checkpoint(tmp_path, saved):
    start_point = StartPoint(tmp_path)
    start_point.find()
    restored = [RestoreReport(str(saved), 7, saved_at_s=1.0, rows=300), RestoreReport()]
    assert "different checkpoints: ['', " in start_point.fault(restored, is_first=True)
    assert (
        start_point.fault(restored, is_first=False) == ""
    )  # the first is a replacement, and has checked its part


def test_the_rows_of_another_save_under_the_same_name_are_not_expected(tmp_path, saved):
    """A server that started from the first is not compared with the second."""
    start_point = StartPoint(tmp_path)
    start_point.find()
    shutil.rmtree(saved)
    saved.mkdir()
    manifest.write(
        saved,
        Manifest(
            step=7,
            num_ps=2,
            saved_at_s=2.0,
            files=(ShardFile("a", "table", "t", 900, 1, "00"),),
        ),
    )
    start_point.find()
    survivor = RestoreReport(str(saved), 7, saved_at_s=1.0, rows=100)
    replacement = RestoreReport(str(saved), 7, saved_at_s=2.0, rows=450)
    assert start_point.fault([survivor, replacement], is_first=False) == ""
    assert "different checkpoints" in start_point.fault([survivor, replacement], is_first=True)
    both = [replacement, replacement]
    assert start_point.fault(both, is_first=False) == ""
    both[0] = RestoreReport(str(saved), 7, saved_at_s=2.0, rows=449)
    assert "1 row is missing" in start_point.fault(both, is_first=False)


def test_a_replacement_from_a_later_increment_of_the_same_time_is_no_loss_of_rows(tmp_path, saved):
    """After a clock was set back, increments have the time of the checkpoint below them."""
    start_point = StartPoint(tmp_path)
    start_point.find()
    first = [
        RestoreReport(path=str(saved), rows=rows, saved_at_s=1.0, increments=0)
        for rows in (100, 200)
    ]
    assert start_point.fault(first, is_first=True) == ""

    base = manifest.read(saved)
    work = tmp_path / "saving-8"
    work.mkdir()
    grown = tuple(replace(file, held=2 * file.rows) for file in base.files)
    link = increments.read_chain(saved).next_link()
    manifest.write(work, replace(base, files=grown, step=8, save_id="i", link=link))
    increments.publish(work, saved, 1)
    assert start_point.find().last.rows == 600

    replacement = RestoreReport(path=str(saved), rows=400, saved_at_s=1.0, increments=1)
    assert start_point.fault([first[0], replacement], is_first=False) == ""
    lacking = replace(replacement, rows=199)
    said = start_point.fault([replacement, lacking], is_first=False)
    assert "1 row is missing" in said


def test_servers_start_from_what_the_step_and_the_input_of_the_run_are_of(tmp_path):
    """The job whose checkpoint it is makes another one, which takes its increments away."""
    base = tmp_path / "model.ckpt-7"
    base.mkdir()
    manifest.write(base, Manifest(step=7, num_ps=1, saved_at_s=1.0, files=(), save_id="base"))
    catalog.record_latest(tmp_path, base, 1.0)
    work = tmp_path / "saving-9-ab"
    work.mkdir()
    link = increments.read_chain(base).next_link()
    manifest.write(work, Manifest(9, 1, 2.0, (), save_id="increment", link=link))
    increments.publish(work, base, 1)

    start_point = StartPoint(tmp_path)
    start_point.find()
    with_increment = RestoreReport(str(base), 9, saved_at_s=2.0, increments=1)
    assert start_point.fault([with_increment], is_first=True) == ""
    increments.remove_all(tmp_path)
    start_point.find()
    without = RestoreReport(str(base), 7, saved_at_s=1.0)
    assert "start the job again" in start_point.fault([without], is_first=True)
    assert start_point.fault([without], is_first=False) == ""


def test_what_is_known_of_checkpoints_does_not_grow_with_their_number(tmp_path):
    start_point = StartPoint(tmp_path)
    for step in range(100):
        folder = tmp_path / f"model.ckpt-{step}"
        folder.mkdir()
        manifest.write(folder, Manifest(step=step, num_ps=1, saved_at_s=float(step), files=()))
        catalog.record_latest(tmp_path, folder, float(step))
        start_point.saved(folder)
        assert start_point.find().directory == folder
    assert len(start_point._rows_by_save) < 20


def publish_increment(base, step, saved_at_s):
    work = base.parent / f"saving-{step}-ab"
    work.mkdir()
    chain = increments.read_chain(base)
    content = Manifest(step, 1, saved_at_s, (), save_id=f"i{step}", link=chain.next_link())
    manifest.write(work, content)
    increments.publish(work, base, chain.number + 1)


def checkpoint_of(model_dir, step):
    folder = model_dir / f"model.ckpt-{step}"
    folder.mkdir()
    content = Manifest(step, 1, saved_at_s=float(step), files=(), save_id=f"s{step}")
    manifest.write(folder, content)
    catalog.record_latest(model_dir, folder, float(step))
    return folder


@pytest.mark.parametrize("is_base_kept", [True, False])
@pytest.mark.parametrize("has_read", ["nothing", "some increments"])
def test_a_save_that_ends_meanwhile_is_not_taken_for_the_loss_of_increments(
    tmp_path, monkeypatch, has_read, is_base_kept
):
    """A ps that was replaced in this moment went back to the checkpoint before the last."""
    base = checkpoint_of(tmp_path, 7)
    publish_increment(base, 8, 8.0)
    publish_increment(base, 9, 9.0)
    read_chain = increments.read_chain

    def end_a_save():
        checkpoint_of(tmp_path, 10)
        increments.remove_all(tmp_path)
        if not is_base_kept:
            assert catalog.remove(tmp_path, base.name)

    def end_a_save_before(directory):
        monkeypatch.setattr(increments, "read_chain", read_chain)
        end_a_save()
        return read_chain(directory)

    read = manifest.read_with_sha256
    one_reader = threading.Lock()
    ended = []

    def end_a_save_between(directory):
        with one_reader:
            if directory != base and not ended:
                ended.append(directory)
                end_a_save()

        return read(directory)

    if has_read == "nothing":
        monkeypatch.setattr(increments, "read_chain", end_a_save_before)
    else:
        monkeypatch.setattr(manifest, "read_with_sha256", end_a_save_between)

    chain = StartPoint(tmp_path).find()
    assert chain.directory == tmp_path / "model.ckpt-10"
    assert chain.last.step == 10


def test_a_checkpoint_of_another_directory_is_loaded_through_the_increment_that_was_its_last(
    tmp_path,
):
    source = tmp_path / "source"
    model_dir = tmp_path / "model"
    base = source / "model.ckpt-7"
    base.mkdir(parents=True)
    model_dir.mkdir()
    manifest.write(base, Manifest(step=7, num_ps=1, saved_at_s=1.0, files=(), save_id="base"))
    catalog.record_latest(source, base, 1.0)
    publish_increment(base, 8, 2.0)
    override.apply(model_dir, source_dir=str(source))

    assert StartPoint(model_dir).find().number == 1
    publish_increment(base, 9, 3.0)
    start_point = StartPoint(model_dir)
    assert start_point.find().number == 1
    assert StartPoint(source).find().number == 2
    with_one = RestoreReport(str(base), 8, saved_at_s=2.0, increments=1)
    assert start_point.fault([with_one], is_first=True) == ""

    shutil.rmtree(source / "increments")
    with pytest.raises(CheckpointDamaged, match=r"has loaded 1 increment .*remove .*restored_incr"):
        start_point.find()
    (model_dir / "restored_increments.json").unlink()
    assert start_point.find().number == 0
