import errno
import itertools
import os
import threading

import pytest

from megalith.checkpoint import catalog, listing, manifest
from megalith.checkpoint.format import MANIFEST
from megalith.checkpoint.manifest import Manifest, ShardFile
from megalith.checkpoint.retention import Retention
from megalith.controller.saving import leftovers
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.whole_model import ShardSaved
from megalith.errors import LimitExceeded, MegalithError, ModelDirInUse, NotReady, SaveFailed
from support.waiting import wait_until


class FakeCoordinator:
    """Two ps with sessions 1 and 2; `on_order` decides what they answer."""

    global_step = 12
    lacks_rows = False

    def __init__(self):
        self.alive = {1, 2}
        self.on_order = lambda order: None
        self.orders = []

    def order_save(self, order):
        self.orders.append(order)
        self.on_order(order)
        return [1, 2]

    def is_alive(self, session):
        return session in self.alive

    def moving_workers(self):
        return ()

    def check_current(self):
        """It is never replaced, unless a test says so."""

    def cursors(self):
        return (b"here", b"")

    def index_of(self, session):
        return session - 1


CONTENT = b"ten bytes."


def file(name, rows=3):
    return ShardFile(name, "table", "t", rows, len(CONTENT), "00")


def everything_in(directory):
    """Names and contents of all files, and when each was last changed."""
    return {
        path.relative_to(directory): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def cluster():
    return FakeCoordinator()


@pytest.fixture
def saver(cluster, tmp_path):
    return Saver(cluster, tmp_path, timeout_s=60.0, clock=lambda: 99.5, appear_s=0.0)


def answer_both(saver, order):
    for session in (1, 2):
        name = f"t-{session}-{order.save_id}"
        (manifest.Path(order.directory) / name).write_bytes(CONTENT)
        saver.answer(session, ShardSaved(order.save_id, [file(name)]))


def test_a_save_lists_every_shard_and_becomes_the_newest(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    saved = saver.save()
    assert (saved.path, saved.step, saved.rows) == (tmp_path / "model.ckpt-12", 12, 6)
    assert manifest.read(saved.path).num_ps == 2
    assert catalog.latest(tmp_path) == saved.path
    assert (tmp_path / "checkpoint").read_text() == (
        'model_checkpoint_path: "model.ckpt-12"\n'
        'all_model_checkpoint_paths: "model.ckpt-12"\n'
        "all_model_checkpoint_timestamps: 99.5\n"
        "last_preserved_timestamp: 0.0\n"
    )


@pytest.mark.parametrize("moving_workers", [(), (0, 1)])
def test_only_a_save_while_no_worker_trains_repeats_no_batch(saver, cluster, moving_workers):
    """A worker that trains has trained more than its last report says."""
    cluster.on_order = lambda order: answer_both(saver, order)
    cluster.moving_workers = lambda: moving_workers
    saved = saver.save()
    assert manifest.read(saved.path).repeated_batches == len(moving_workers)


@pytest.mark.golden("Extra.save_with_barrier", "G11")
def test_a_save_that_holds_training_writes_behind_the_barrier_and_always_lets_go(saver, cluster):
    events = []
    cluster.hold = lambda action, reason, timeout_s: (
        events.append(action),
        lambda: events.append("let go"),
    )[1]
    cluster.on_order = lambda order: (events.append("write"), answer_both(saver, order))
    saver.save(hold=True)
    cluster.on_order = lambda order: (
        events.append("fail"),
        saver.answer(1, ShardSaved(order.save_id, [], error="disk full")),
    )
    cluster.alive = {1}
    with pytest.raises(MegalithError):
        saver.save(hold=True)
    assert events == ["Save", "write", "let go", "Save", "fail", "let go"]


def test_a_save_that_went_on_without_some_workers_says_so(saver, cluster):
    cluster.hold = lambda action, reason, timeout_s: lambda: None
    cluster.moving_workers = lambda: (1, 3)
    cluster.on_order = lambda order: answer_both(saver, order)
    assert saver.save(hold=True).moving_workers == (1, 3)
    assert saver.save().moving_workers == ()


def test_older_checkpoints_stay_in_the_list(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save()
    cluster.global_step = 20
    saver.save()
    assert catalog.latest(tmp_path).name == "model.ckpt-20"
    assert 'all_model_checkpoint_paths: "model.ckpt-12"' in (tmp_path / "checkpoint").read_text()


def test_a_save_that_one_ps_cannot_finish_does_not_exist(saver, cluster, tmp_path):
    def answer(order):
        name = f"t-1-{order.save_id}"
        (manifest.Path(order.directory) / name).write_bytes(CONTENT)
        saver.answer(1, ShardSaved(order.save_id, [file(name)]))
        saver.answer(2, ShardSaved(order.save_id, [], error="ps-1: disk full"))

    cluster.on_order = answer
    with pytest.raises(SaveFailed, match="disk full"):
        saver.save()
    assert catalog.latest(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_ps_lost_during_a_save_fails_it_at_once(saver, cluster):
    cluster.on_order = lambda order: cluster.alive.discard(2)
    with pytest.raises(SaveFailed, match="a ps was lost"):
        saver.save()


def test_a_second_save_of_a_step_is_a_new_folder_and_touches_nothing_of_the_first(
    saver, cluster, tmp_path
):
    cluster.on_order = lambda order: answer_both(saver, order)
    first = saver.save()
    before = everything_in(first.path)
    second, third = saver.save(), saver.save()
    assert (second.path.name, third.path.name) == ("model.ckpt-r1-12", "model.ckpt-r2-12")
    assert (second.step, second.rows) == (12, 6)
    assert everything_in(first.path) == before
    assert catalog.latest(tmp_path) == third.path
    listed = [
        line
        for line in (tmp_path / "checkpoint").read_text().splitlines()
        if line.startswith("all_model_ch")
    ]
    assert listed[:3] == [
        'all_model_checkpoint_paths: "model.ckpt-12"',
        'all_model_checkpoint_paths: "model.ckpt-r1-12"',
        'all_model_checkpoint_paths: "model.ckpt-r2-12"',
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint",
        "ckpt.info-12",
        "model.ckpt-12",
        "model.ckpt-r1-12",
        "model.ckpt-r2-12",
        "monolith_checkpoint",
    ]


def test_two_jobs_that_save_one_step_into_one_directory_at_once_take_nothing_from_each_other(
    tmp_path,
):
    at_once = threading.Barrier(2)
    saved = []

    def save():
        cluster = FakeCoordinator()
        saver = Saver(cluster, tmp_path, timeout_s=60.0, appear_s=0.0)
        cluster.on_order = lambda order: (answer_both(saver, order), at_once.wait(30))
        for _ in range(20):
            saved.append(saver.save().path)

    threads = [threading.Thread(target=save) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(saved)) == 40
    assert {path.name for path in saved} == {
        "model.ckpt-12",
        *(f"model.ckpt-r{k}-12" for k in range(1, 40)),
    }
    for path in saved:
        assert all((path / item.name).read_bytes() == CONTENT for item in manifest.read(path).files)
        assert f'all_model_checkpoint_paths: "{path.name}"' in (tmp_path / "checkpoint").read_text()


def test_a_file_named_like_the_list_that_is_none_is_kept(saver, cluster, tmp_path):
    (tmp_path / "checkpoint").write_text("the only copy of a thesis")
    cluster.on_order = lambda order: answer_both(saver, order)
    saved = saver.save()
    assert catalog.latest(tmp_path) == saved.path
    (kept,) = tmp_path.glob("checkpoint-kept-*")
    assert kept.read_text() == "the only copy of a thesis"


@pytest.mark.parametrize("content", [None, CONTENT[:-1]])
def test_a_file_that_a_ps_lists_but_that_is_not_here_fails_the_save(
    saver, cluster, tmp_path, content
):
    def answer(order):
        answer_both(saver, order)
        path = manifest.Path(order.directory) / f"t-2-{order.save_id}"
        path.unlink() if content is None else path.write_bytes(content)

    cluster.on_order = answer
    with pytest.raises(
        SaveFailed, match=r"10 bytes to .*t-2-.*does every ps see the same directory"
    ):
        saver.save()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_other_machines_show_late_is_waited_for(cluster, tmp_path):
    saver = Saver(cluster, tmp_path, timeout_s=60.0, appear_s=60.0)

    def answer(order):
        answer_both(saver, order)
        path = manifest.Path(order.directory) / f"t-2-{order.save_id}"
        path.unlink()
        threading.Timer(0.3, path.write_bytes, [CONTENT]).start()

    cluster.on_order = answer
    assert saver.save().rows == 6


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


def test_a_save_of_servers_that_restored_too_little_is_listed_and_never_the_newest(
    saver, cluster, tmp_path, caplog
):
    cluster.on_order = lambda order: answer_both(saver, order)
    whole = saver.save()
    cluster.lacks_rows = True
    part = saver.save()
    assert (whole.is_whole, part.is_whole) == (True, False)
    assert not saver.last.is_whole
    assert part.path.name == "model.ckpt-r1-12"
    assert catalog.latest(tmp_path) == whole.path
    assert catalog.is_listed(tmp_path, part.path)
    assert "rows are missing in it" in caplog.text


def test_a_model_that_lacks_rows_is_not_copied_into_another_directory(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    cluster.lacks_rows = True
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(SaveFailed, match="rows of this model are missing"):
        saver.save(str(elsewhere))
    assert catalog.latest(elsewhere) is None


def test_a_ps_that_is_late_with_a_save_that_timed_out_cannot_write_into_a_checkpoint(
    cluster, tmp_path
):
    saver = Saver(cluster, tmp_path, timeout_s=0.1, appear_s=0.0)
    with pytest.raises(SaveFailed, match="2 ps did not finish within"):
        saver.save()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        answer_both(saver, cluster.orders[0])


def test_a_failed_save_of_the_same_step_keeps_the_good_one(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    good = saver.save()
    cluster.on_order = lambda order: [
        saver.answer(session, ShardSaved(order.save_id, [], error="no")) for session in (1, 2)
    ]
    with pytest.raises(SaveFailed):
        saver.save()
    assert catalog.latest(tmp_path) == good.path
    assert all((good.path / item.name).exists() for item in manifest.read(good.path).files)


def test_a_directory_that_cannot_be_made_is_a_failed_save(saver, tmp_path):
    (tmp_path / "model.ckpt-12").touch()
    with pytest.raises(SaveFailed, match="cannot write the checkpoint"):
        saver.save()


def test_too_many_saves_at_once_are_refused(saver, cluster):
    release = threading.Event()
    cluster.on_order = lambda order: (release.wait(30), answer_both(saver, order))
    threads = [threading.Thread(target=saver.save) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: cluster.orders)
    wait_until(lambda: saver._queue._value == 0)
    with pytest.raises(LimitExceeded, match="4 saves are under way"):
        saver.save()
    release.set()
    for thread in threads:
        thread.join(30)
    assert saver.save().rows == 6


def test_an_answer_to_an_older_save_is_ignored(saver, cluster):
    cluster.on_order = lambda order: (
        saver.answer(1, ShardSaved("old", [], error="stale error")),
        answer_both(saver, order),
    )
    assert saver.save().rows == 6


def test_saves_take_turns(saver, cluster):
    release, running = threading.Event(), []

    def slow(order):
        running.append(order.save_id)
        assert len(running) == 1
        release.wait(30)
        answer_both(saver, order)
        running.clear()

    cluster.on_order = slow
    threads = [threading.Thread(target=saver.save) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: running)
    release.set()
    for thread in threads:
        thread.join(30)
    assert len(cluster.orders) == 3
    assert len({order.save_id for order in cluster.orders}) == 3


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


def test_a_save_that_lacks_a_part_of_a_variable_or_a_table_of_one_ps_is_refused_and_says_what(
    saver, cluster, tmp_path
):
    cluster.on_order = lambda order: answer_both(saver, order)
    good = saver.save()

    def answer(order):
        for session, tables, parts in (
            (1, ["t"], ["w@1/3"]),
            (2, ["t", "cnt"], ["v@0/2", "w@0/3", "v@1/2"]),
        ):
            files = []
            for table in tables:
                name = f"{table}-{session}-{order.save_id}"
                (manifest.Path(order.directory) / name).write_bytes(CONTENT)
                files.append(ShardFile(name, "table", table, 3, len(CONTENT), "00"))
            saver.answer(session, ShardSaved(order.save_id, files, tuple(parts)))

    cluster.on_order = answer
    with pytest.raises(SaveFailed) as refused:
        saver.save()
    assert "table 'cnt' is not on ps-0; parts [2] of 3 of variable 'w' are on no ps" in str(
        refused.value
    )
    assert "create_tables and create_variables, or restart the chief" in str(refused.value)
    assert catalog.latest(tmp_path) == good.path
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [good.path.name]


@pytest.mark.golden("G11")
def test_a_save_that_fails_once_is_tried_again_and_each_try_has_a_record(cluster, tmp_path):
    records = []
    saver = Saver(cluster, tmp_path, timeout_s=60.0, appear_s=0.0, on_saved=records.append)
    failures = ["ps-1: a disk hiccup"]

    def answer(order):
        if failures:
            saver.answer(1, ShardSaved(order.save_id, [], error=failures.pop()))
            saver.answer(2, ShardSaved(order.save_id, []))
        else:
            answer_both(saver, order)

    cluster.on_order = answer
    assert saver.save().path == tmp_path / "model.ckpt-12"
    assert [record.error for record in records] == ["ps-1: a disk hiccup", ""]
    failures += ["again", "and again"]
    with pytest.raises(SaveFailed, match="again"):
        saver.save()
    assert len(cluster.orders) == 4


def test_a_save_keeps_to_the_rule_and_says_what_it_wrote_and_removed(cluster, tmp_path):
    saver = Saver(cluster, tmp_path, timeout_s=60.0, appear_s=0.0, retention=Retention(2, 0.0))
    progress = []
    cluster.on_order = lambda order: (answer_both(saver, order), progress.append(saver.progress()))
    for step in (1, 2, 3):
        cluster.global_step = step
        saved = saver.save()
    assert saved.removed == saver.last.removed == ("model.ckpt-1",)
    assert (saved.rows, saved.bytes) == (saver.last.rows, saver.last.bytes) == (6, 20)
    assert [(one.step, one.bytes) for one in progress] == [(1, 20), (2, 20), (3, 20)]
    assert (saver.progress(), saver.num_removed) == (None, 1)
    assert not (tmp_path / "model.ckpt-1").exists()


def test_what_is_saved_elsewhere_stays_there(cluster, tmp_path):
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    saver = Saver(cluster, model_dir, timeout_s=60.0, appear_s=0.0, retention=Retention(1, 0.0))
    cluster.on_order = lambda order: answer_both(saver, order)
    for _ in range(3):
        assert saver.save(str(tmp_path / "elsewhere")).removed == ()
    assert len(list((tmp_path / "elsewhere").glob("model.ckpt-*"))) == 3


def test_after_the_last_save_training_stays_held_unless_the_save_failed(saver, cluster):
    held = []
    cluster.hold = lambda action, reason, timeout_s: (held.append(1), held.clear)[1]
    cluster.on_order = lambda order: saver.answer(1, ShardSaved(order.save_id, [], error="full"))
    cluster.alive = {1}
    with pytest.raises(SaveFailed):
        saver.save(hold=True, is_last=True)
    assert held == []
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save(hold=True, is_last=True)
    assert held == [1]
