"""What several controllers in a row must not forget: the end of the job, losses, runs that are
over, holds."""

import json
from dataclasses import replace

import pytest

from megalith.controller.coordinator import Coordinator
from megalith.controller.members import job_files, journal, journal_file
from megalith.controller.members.barrier import HolderKind
from megalith.controller.members.journal_file import JournalKeeper
from megalith.controller.members.losses import Loss, Losses
from megalith.controller.members.roster import Patience, Registration, Role
from megalith.errors import NotInCluster
from megalith.runtime.joining.lease import LEASE_MARGIN_S, LEASE_S
from megalith.wire.reports import PsReport, RestoreReport, WorkerReport

SUSPECT_S = 5.0
PATIENCE = Patience(silence_s=10.0, suspect_s=SUSPECT_S, lost_worker_s=60.0)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def begin(clock):
    def begun(left=None, num_ps=2, num_workers=0, **settings):
        return Coordinator(
            num_ps, num_workers, patience=PATIENCE, journal=left, clock=clock, **settings
        )

    return begun


def join(cluster, role, index, incarnation=None, **changes):
    name = incarnation or f"{role}-{index}"
    registration = Registration(role, index, f"{name}:1", incarnation=name, **changes)
    return cluster.join(registration, lambda directive: None)


def ready(cluster, index, incarnation=None, rows=1_000, restored=None, **changes):
    session = join(cluster, Role.PS, index, incarnation, **changes)
    load = PsReport(is_ready=True, rows=rows, pushes=5, restored=restored or RestoreReport())
    cluster.report_ps(session, load)
    return session


def give_up_on_the_last_run(cluster, clock):
    clock.now += SUSPECT_S + 1
    cluster.watch()


def sentences(cluster):
    return [loss.what for loss in cluster.losses()[1]]


# --- losses ---


def test_losses_survive_a_controller_that_dies_before_anybody_is_back(begin):
    first = begin()
    ready(first, 1)
    first.leave(ready(first, 0))
    ready(first, 0, "new-0", rows=0)
    assert first.losses()[0] == 1_000
    second = begin(first.journal())
    third = begin(second.journal())
    join(third, Role.PS, 1)
    assert third.losses() == first.losses()


def test_unknown_pushes_survive_a_controller_that_dies_before_anybody_is_back(begin):
    first = begin(num_workers=1)
    worker = join(first, Role.WORKER, 0)
    first.report_worker(worker, WorkerReport(pushes_unknown=7))
    third = begin(begin(first.journal(), num_workers=1).journal(), num_workers=1)
    join(third, Role.WORKER, 0)
    assert third.pushes_unknown == 7


def test_what_went_down_with_a_ps_is_said_although_the_controller_dies_before_its_replacement_is_ready(
    begin,
):
    first = begin()
    ready(first, 1)
    first.leave(ready(first, 0))
    join(first, Role.PS, 0, "new-0")
    second = begin(first.journal())
    third = begin(second.journal())
    ready(third, 1, held_shard=1)
    ready(third, 0, "new-0", rows=0, held_shard=0)
    rows, said = third.losses()
    assert rows == 1_000
    assert [loss.what[:46] for loss in said] == ["ps-0 was replaced and starts empty, there is n"]


def test_what_a_run_of_another_shape_held_is_said_by_the_second_controller_after_it(begin):
    first = begin()
    for index in range(2):
        ready(first, index)
    second = begin(first.journal(), num_ps=1)
    join(second, Role.PS, 0, "new-0")
    third = begin(second.journal(), num_ps=1)
    ready(third, 0, "new-0", rows=0)
    assert third.losses()[0] == 2_000


def test_a_recalled_loss_does_not_push_out_a_newer_one():
    losses = Losses(clock=lambda: 2_000.0)
    losses.add(0, "new")
    losses.recall(0, tuple(Loss(1.0, 0, f"old {number}") for number in range(100)))
    said = [loss.what for loss in losses.said]
    assert (len(said), said[0], said[-1]) == (100, "old 1", "new")


def test_a_save_that_knows_of_more_pushes_than_the_last_report_leaves_a_journal_that_can_be_read(
    begin,
):
    first = begin()
    ready(first, 1)
    session = ready(first, 0)
    first.checkpoint_saved("/m/model.ckpt-0", 1.0, {session: 9})
    first.leave(session)
    join(first, Role.PS, 0, "new-0")
    first.journal().check()


# --- the end of the job ---


def test_a_job_that_is_to_end_ends_under_the_next_controllers_too(begin):
    first = begin(num_workers=1)
    join(first, Role.WORKER, 0)
    first.begin_end(False, "worker-0 failed")
    second = begin(first.journal(), num_workers=1)
    third = begin(second.journal(), num_workers=1)
    assert third.ending is None  # whether the run goes on is not known yet
    join(third, Role.WORKER, 0)
    assert third.ending == (False, "worker-0 failed")
    assert third.wait_until_saving(lambda: False)


def test_the_end_is_on_disk_before_the_call_is_answered(begin):
    kept = []
    cluster = begin(flush_journal=lambda: kept.append(cluster.journal()))
    cluster.begin_end(True, "enough")
    assert kept[-1].ending == journal.Ending(True, "enough")
    cluster.end(True, "enough; saved")
    assert kept[-1].outcome.reason == "enough; saved"


def test_a_run_that_was_to_end_and_does_not_go_on_is_said(begin, clock):
    first = begin()
    ready(first, 0)
    first.begin_end(True, "the data is old")
    second = begin(first.journal())
    give_up_on_the_last_run(second, clock)
    assert second.ending is None
    assert any("the last run was to end (the data is old)" in said for said in sentences(second))


# --- runs ---


@pytest.mark.parametrize("num_ps", [2, 3], ids=["nobody-is-back", "another-shape"])
def test_a_run_that_was_not_continued_is_recorded_as_ended(begin, clock, tmp_path, num_ps):
    first = begin()
    ready(first, 0)
    second = begin(first.journal(), num_ps=num_ps)
    give_up_on_the_last_run(second, clock)
    keeper = JournalKeeper(tmp_path, second.journal)
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=True)
    assert second.run_id != first.run_id
    assert job_files.ended_runs(tmp_path) == (first.run_id,)
    third = begin(ended_runs=job_files.ended_runs(tmp_path))
    with pytest.raises(NotInCluster, match="which has ended"):
        join(third, Role.PS, 0, run_id=first.run_id, epoch=1, held_shard=0)


def test_the_run_of_another_job_in_the_same_directory_is_recorded_as_ended(begin, tmp_path):
    first = begin(job="j")
    keep(tmp_path, first.journal())
    assert journal_file.left_for(tmp_path, "another", (2, 0), 0.0) is None
    assert job_files.ended_runs(tmp_path) == (first.run_id,)


def test_servers_of_a_new_run_after_a_crash_start_from_one_checkpoint(begin, clock):
    asked = []

    def fault(restored, *, is_first):
        asked.append(is_first)
        return ""

    first = begin(restore_fault=fault)
    for index in range(2):
        ready(first, index)
    second = begin(first.journal(), restore_fault=fault)
    give_up_on_the_last_run(second, clock)
    ready(second, 1, "new-1")
    second.leave(ready(second, 0, "new-0"))
    ready(second, 0, "newer-0")
    assert asked == [True, True, False]


# --- holds ---


def test_a_hold_on_a_run_that_does_not_go_on_ends_with_a_word(begin, clock):
    first = begin()
    ready(first, 0)
    first.place_barrier(reason="look at the data")
    second = begin(first.journal())
    give_up_on_the_last_run(second, clock)
    assert not second.state().barrier.is_placed
    assert any("held by operator (look at the data)" in said for said in sentences(second))


def test_a_hold_on_a_run_of_another_shape_ends_with_a_word(begin):
    first = begin()
    first.place_barrier(reason="look at the data")
    second = begin(first.journal(), num_ps=1)
    ready(second, 0)
    assert any("held by operator (look at the data)" in said for said in sentences(second))


def test_a_hold_that_the_new_controller_has_acknowledged_stays(begin, clock):
    first = begin()
    ready(first, 0)
    first.place_barrier(reason="old", kind=HolderKind.PLATFORM)
    second = begin(first.journal())
    second.place_barrier(reason="new")
    give_up_on_the_last_run(second, clock)
    assert [holder.reason for holder in second.state().barrier.holders] == ["new"]


def test_a_stop_by_file_whose_controller_died_holds_nobody(begin):
    first = begin()
    for index in range(2):
        ready(first, index)
    first.hold("Stop", "monolith_action", 0.01, HolderKind.ACTION)
    second = begin(first.journal())
    join(second, Role.PS, 0)
    assert second.state().barrier.holders == ()
    second.hold("Stop", "monolith_action", 0.01, HolderKind.ACTION)()  # the file is obeyed again
    assert second.state().barrier.holders == ()


# --- the file ---


def keep(directory, left, **settings):
    keeper = JournalKeeper(directory, lambda: left, **settings)
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=False)


@pytest.fixture
def left(begin):
    cluster = begin(num_workers=1)
    ready(cluster, 0)
    join(cluster, Role.WORKER, 0)
    cluster.place_barrier()
    return replace(
        cluster.journal(),
        outcome=journal.Outcome(True, "done", 1.0),
        losses=(Loss(1.0, 2, "rows"),),
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("outcome.at_s", "yesterday"),
        ("outcome.succeeded", "yes"),
        ("ps.0.rows", "many"),
        ("ps.0.pushes", None),
        ("ps.0.pushes_saved", -1),
        ("ps.0.address", 7),
        ("workers.0.pushes_unknown", 2**60),
        ("losses.0.rows", [1]),
        ("rows_lost", "7"),
        ("run_id", 5),
        ("barrier.holders.0.reason", 5),
    ],
)
def test_a_journal_with_a_value_of_another_type_is_set_aside(left, tmp_path, path, value):
    keep(tmp_path, left)
    file = tmp_path / job_files.JOURNAL
    content = json.loads(file.read_text())
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    part = content
    for key in way:
        part = part[key]
    part[last] = value
    file.write_text(json.dumps(content))
    assert journal_file.read(tmp_path) is None
    assert (tmp_path / f"{job_files.JOURNAL}-unusable").exists()


def test_a_controller_that_is_replaced_while_it_writes_leaves_the_file_as_it_is(left, tmp_path):
    keep(tmp_path, left)
    answers = iter([True, False, False])  # it is paused between the first question and the rename
    keeper = JournalKeeper(
        tmp_path, lambda: replace(left, global_step=7), may_write=lambda: next(answers, False)
    )
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=True)
    assert journal_file.read(tmp_path) == left
    assert [path.name for path in tmp_path.iterdir()] == [job_files.JOURNAL]


def test_the_journal_of_a_newer_controller_is_left_although_nothing_else_tells_of_it(
    left, tmp_path
):
    step = [1]
    older = JournalKeeper(tmp_path, lambda: replace(left, global_step=step[0]), generation=1)
    older.start()
    older.flush()
    keep(tmp_path, left, generation=2)
    step[0] = 2
    older.flush()
    older.stop(is_over=True)
    assert journal_file.read(tmp_path) == left


def test_a_model_that_lacks_rows_lacks_them_for_the_next_controller_too(begin, clock):
    faults = [""]
    settings = {"restore_fault": lambda restored, *, is_first: faults[0]}
    first = begin(**settings)
    gone, _ = ready(first, 0), ready(first, 1)
    first.leave(gone)
    faults[0] = "rows are missing"
    ready(first, 0, "new-0")
    assert first.lacks_rows
    assert first.ending == (False, "rows are missing")

    faults[0] = ""  # ps-1 has not said yet what it restored, so nobody can tell
    second = begin(first.journal(), **settings)
    clock.now += 4.0
    ready(second, 0, "new-0", held_shard=0, run_id=second.run_id)
    assert second.ending == (False, "rows are missing")
    assert second.lacks_rows
    assert begin(second.journal(), **settings).lacks_rows


# --- leases of a run that begins ---


def test_a_run_that_begins_keeps_the_leases_of_who_joined_it_and_drops_all_others(begin, clock):
    first = begin()
    for index in range(2):
        ready(first, index, has_lease=True)
    second = begin(first.journal())
    clock.now += 1.0
    session = ready(second, 0, "new-0", has_lease=True)  # while the last run is awaited
    assert second.seats()[0][0].leased_until > clock.now
    while second.run_id == first.run_id:  # renewed until then, and not after
        clock.now += 1.0
        second.renew(session, is_last=False)
        second.watch()
    old, new = second.seats()[1][0], second.seats()[0][0]
    assert (new.has_lease, new.leased_until) == (True, 0.0)
    assert (old.has_lease, old.leased_until) == (False, 0.0)

    # Who joins a seat of the old run waits for nobody; who replaces the new member does.
    ready(second, 1, "new-1", has_lease=True)
    assert second.current_routing().addresses == ("new-0:1", "new-1:1")
    second.leave(session)
    ready(second, 0, "newer-0", has_lease=True)
    assert second.seats()[0][0].leased_until > clock.now
    assert second.current_routing().addresses == ("new-0:1", "new-1:1")
    clock.now += 3.6
    second.watch()
    assert second.current_routing().addresses == ("newer-0:1", "new-1:1")


# --- before anybody has joined ---


@pytest.mark.parametrize(
    "tell",
    [
        lambda cluster: cluster.place_barrier("look at data"),
        lambda cluster: cluster.begin_end(False, "the chief's task raised"),
        lambda cluster: cluster.add_loss("what died with up"),
    ],
    ids=["hold", "ending", "loss"],
)
def test_a_controller_that_was_told_something_before_anybody_joined_leaves_its_journal(begin, tell):
    cluster = begin()
    assert cluster.knows_nothing
    tell(cluster)
    assert not cluster.knows_nothing


def test_a_run_whose_end_could_not_be_recorded_is_recorded_with_the_next_journal(
    begin, tmp_path, monkeypatch
):
    left = replace(begin().journal(), ended_runs=("abc",))
    keeper = JournalKeeper(tmp_path, lambda: left)

    def full(*arguments, **settings):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(job_files, "write_atomically", full)
        keeper._record_ended(left)
    assert job_files.ended_runs(tmp_path) == ()
    keeper._record_ended(left)
    assert job_files.ended_runs(tmp_path) == ("abc",)


def test_a_worker_that_was_replaced_counts_as_moving_for_the_next_controller_too(begin, clock):
    first = begin(num_ps=1, num_workers=1)
    ready(first, 0)
    first.leave(join(first, Role.WORKER, 0, "cut-off", has_lease=True))
    second_worker = join(first, Role.WORKER, 0, "new", has_lease=True)
    first.report_worker(second_worker, WorkerReport(initialized_epoch=1, has_begun=True))

    second = begin(first.journal(), num_ps=1, num_workers=1)
    back = join(second, Role.WORKER, 0, "new", has_lease=True)
    held = second.place_barrier()
    second.report_worker(back, WorkerReport(is_blocked=True, barrier_id=held.id))
    assert second.moving_workers() == (0,), "the one that is cut off may still train"
    clock.now += LEASE_S + LEASE_MARGIN_S
    assert second.moving_workers() == ()
    assert not second.journal().workers[0].has_predecessor


# --- whether a run has had a map ---


def test_a_run_without_a_map_has_none_for_the_next_controller_whatever_the_run_before_it_had(
    begin, clock
):
    first = begin()
    for index in range(2):
        ready(first, index)
    second = begin(first.journal())
    give_up_on_the_last_run(second, clock)
    join(second, Role.PS, 0, "new-0")
    left = second.journal()
    assert (left.epoch, left.was_mapped) == (1, False)

    asked = []
    third = begin(
        left, restore_fault=lambda restored, *, is_first: asked.append(is_first) or "differ"
    )
    assert not third.has_trained
    ready(third, 0, "new-0")
    ready(third, 1, "new-1")
    clock.now += LEASE_S + LEASE_MARGIN_S
    third.watch()
    assert asked[0] is True, "its servers start together"
    assert third.outcome == (False, "differ"), "there is nothing to save"


def test_a_ps_that_served_no_map_does_not_say_that_this_run_had_one(begin):
    cluster = begin()
    join(cluster, Role.PS, 0, epoch=7)  # it was restoring in a run that is gone
    assert not cluster.has_trained
    join(cluster, Role.PS, 1, epoch=7, run_id=cluster.run_id)
    assert cluster.has_trained
