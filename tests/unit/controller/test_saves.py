import errno
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from megalith.checkpoint.directory import catalog
from megalith.checkpoint.directory.retention import Retention
from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.controller import codec
from megalith.controller.members.directives import Phase
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.schedule import SaveSchedule, ScheduledSaves
from megalith.controller.saving.whole_model import ShardSaved
from megalith.errors import AccessDenied, LimitExceeded, MegalithError, SaveFailed, SaveTimedOut
from support.saves import CONTENT, FakeCoordinator, answer_both, everything_in, file
from support.waiting import wait_until


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


def test_the_last_save_holds_training_while_another_one_is_under_way(saver, cluster):
    """That one rests as long as somebody trains."""
    is_written = threading.Event()
    is_held = threading.Event()
    seen = []

    def hold(action, reason, timeout_s):
        is_held.set()
        return lambda: seen.append("let go")

    def write_slowly(order):
        is_written.set()
        seen.append(is_held.wait(5))
        answer_both(saver, order)

    cluster.hold = hold
    cluster.on_order = write_slowly
    first = threading.Thread(target=saver.save)
    first.start()
    assert is_written.wait(5)
    last = saver.save(hold=True, is_last=True)
    first.join()

    assert seen == [True, True]
    assert last.path.name == "model.ckpt-r1-12"


def test_a_last_save_that_fails_lets_go(saver, cluster):
    events = []
    cluster.hold = lambda action, reason, timeout_s: lambda: events.append("let go")
    cluster.on_order = lambda order: cluster.alive.discard(2)
    with pytest.raises(SaveFailed, match="a ps was lost"):
        saver.save(hold=True, is_last=True)

    assert events == ["let go"]


def test_every_ps_hears_how_long_the_save_may_take(saver, cluster):
    """It rests no longer than a third of that."""
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save()
    assert [order.timeout_s for order in cluster.orders] == [60.0]
    assert codec.encode_save_order(cluster.orders[0]).timeout_s == 60.0


@pytest.mark.parametrize("is_stopgap", [True, False])
def test_whether_a_save_is_in_place_of_an_increment_is_told(cluster, tmp_path, is_stopgap):
    records = []
    saver = Saver(cluster, tmp_path, timeout_s=60.0, appear_s=0.0, on_saved=records.append)
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save(is_stopgap=is_stopgap)
    assert [record.is_stopgap for record in records] == [is_stopgap]


def test_a_save_says_that_what_it_removed_was_in_place_of_an_increment(cluster, tmp_path):
    saver = Saver(cluster, tmp_path, timeout_s=60.0, appear_s=0.0, retention=Retention(10))
    cluster.on_order = lambda order: answer_both(saver, order)
    saver.save()
    cluster.global_step = 20
    stopgap = saver.save(is_stopgap=True)
    assert (stopgap.removed, stopgap.removed_stopgap) == ((), "")
    cluster.global_step = 30
    after = saver.save()
    assert (after.removed, after.removed_stopgap) == (("model.ckpt-20",), "model.ckpt-20")


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
        (Path(order.directory) / name).write_bytes(CONTENT)
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
        path = Path(order.directory) / f"t-2-{order.save_id}"
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
        path = Path(order.directory) / f"t-2-{order.save_id}"
        path.unlink()
        threading.Timer(0.3, path.write_bytes, [CONTENT]).start()

    cluster.on_order = answer
    assert saver.save().rows == 6


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


def test_a_ps_that_was_waited_for_and_lacks_rows_is_noticed_before_a_copy(saver, cluster, tmp_path):
    cluster.on_order = lambda order: answer_both(saver, order)
    cluster.wait_for_returning_ps = lambda: setattr(cluster, "lacks_rows", True)
    with pytest.raises(SaveFailed, match="rows of this model are missing"):
        saver.save(str(tmp_path / "elsewhere"))
    assert cluster.orders == []


def test_a_ps_that_is_late_with_a_save_that_timed_out_cannot_write_into_a_checkpoint(
    cluster, tmp_path
):
    saver = Saver(cluster, tmp_path, timeout_s=0.1, appear_s=0.0)
    with pytest.raises(SaveTimedOut, match="2 ps did not finish within"):
        saver.save()
    assert list(tmp_path.iterdir()) == []
    assert len(cluster.orders) == 1, "a second try would write beside the first, and block as long"
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


def test_a_planned_save_is_not_made_after_the_one_that_it_has_waited_for(cluster, tmp_path):
    """A job that is over before the first look at the schedule ended with two of one step."""
    schedule = SaveSchedule(0.0, 10, now=0.0, step=0)
    saver = Saver(
        cluster,
        tmp_path,
        timeout_s=60.0,
        appear_s=0.0,
        on_saved=lambda record: schedule.restart(0.0, record.step),
    )
    cluster.state = lambda: SimpleNamespace(phase=Phase.RUNNING)
    orders = []
    cluster.on_order = orders.append
    last = threading.Thread(target=saver.save, daemon=True)
    last.start()
    wait_until(lambda: orders)

    has_looked = threading.Event()
    planned = ScheduledSaves(cluster, saver, schedule, is_wanted=lambda: has_looked.set() or True)
    looks = iter([False, True])
    stopping = SimpleNamespace(wait=lambda seconds: next(looks))
    waiting = threading.Thread(target=planned.run, args=(stopping,), daemon=True)
    waiting.start()
    assert has_looked.wait(10)

    cluster.on_order = lambda order: answer_both(saver, order)
    answer_both(saver, orders[0])
    last.join(10)
    waiting.join(10)
    assert not waiting.is_alive()
    assert [path.name for path in tmp_path.glob("model.ckpt-*")] == ["model.ckpt-12"]
    assert saver.save().path.name == "model.ckpt-r1-12", "one that is asked for is made"


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
                (Path(order.directory) / name).write_bytes(CONTENT)
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


def test_a_save_of_a_table_in_two_layouts_is_refused_and_says_who_has_which(
    saver, cluster, tmp_path
):
    def answer(order):
        for session, layout in (1, "16:sgd"), (2, "16:adagrad"):
            name = f"t-{session}-{order.save_id}"
            (Path(order.directory) / name).write_bytes(CONTENT)
            layouts = {"t": layout, "other": "1:ftrl"}
            saver.answer(session, ShardSaved(order.save_id, [file(name)], layouts=layouts))

    cluster.on_order = answer
    with pytest.raises(SaveFailed, match="table 't' has rows 16:adagrad on ps-1, 16:sgd on ps-0;"):
        saver.save()
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), AccessDenied("list")])
def test_a_save_that_is_complete_is_not_called_failed_because_what_follows_from_it_fails(
    cluster, tmp_path, error, caplog
):
    def fail(record):
        raise error

    saver = Saver(cluster, tmp_path, timeout_s=60.0, appear_s=0.0, on_saved=fail)
    cluster.on_order = lambda order: answer_both(saver, order)
    saved = saver.save()
    assert catalog.latest(tmp_path) == saved.path
    assert saver.last.error == ""
    assert "what follows from a save could not be done" in caplog.text

    cluster.on_order = lambda order: saver.answer(1, ShardSaved(order.save_id, [], error="full"))
    cluster.alive = {1}
    with pytest.raises(SaveFailed):  # and the error of one that failed is its own
        saver.save()
