"""A controller that takes over from one that died."""

import json
import threading
from dataclasses import replace

import pytest

from megalith.controller.coordinator import Coordinator
from megalith.controller.members import job_files, journal, journal_file
from megalith.controller.members.directives import ClusterState, Phase
from megalith.controller.members.journal_file import JournalKeeper
from megalith.controller.members.roster import Patience, Registration, Role
from megalith.errors import InvalidRequest, NotInCluster, NotReady, RunUndecided, WrongRun
from megalith.wire.reports import LeftOut, PsReport, RestoreReport, WorkerReport
from support.waiting import wait_until

SUSPECT_S = 5.0
PATIENCE = Patience(silence_s=10.0, suspect_s=SUSPECT_S, lost_worker_s=60.0)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def coordinator(clock, left=None, num_workers=2, **settings):
    return Coordinator(2, num_workers, patience=PATIENCE, journal=left, clock=clock, **settings)


def join(cluster, role, index, incarnation=None, **changes):
    told = []
    name = incarnation or f"{role}-{index}"
    session = cluster.join(
        Registration(role, index, f"{name}:1", incarnation=name, **changes), told.append
    )
    return session, told


def last_state(told):
    return [item for item in told if isinstance(item, ClusterState)][-1]


@pytest.fixture
def left(clock):
    """The journal of a controller that died at step 30 of epoch 1, in a run from step 0, with a
    barrier placed."""
    cluster = coordinator(clock)
    for index in range(2):
        cluster.report_ps(join(cluster, Role.PS, index)[0], PsReport(is_ready=True))
    workers = [join(cluster, Role.WORKER, index)[0] for index in range(2)]
    cluster.report_worker(
        workers[0], WorkerReport(initialized_epoch=1, position=16, has_begun=True)
    )
    cluster.report_worker(workers[1], WorkerReport(position=14, global_step=30, has_begun=True))
    cluster.place_barrier(reason="operator")
    return cluster.journal()


def test_map_barrier_step_and_positions_go_on_once_a_member_is_back(left, clock):
    cluster = coordinator(clock, left)
    assert cluster.state().phase is Phase.FORMING
    with pytest.raises(RunUndecided):
        cluster.current_routing()
    _, told = join(cluster, Role.WORKER, 1)
    state = last_state(told)
    assert state.phase is Phase.RUNNING
    assert cluster.current_routing().epoch == 1
    assert cluster.current_routing().addresses == ("ps-0:1", "ps-1:1")
    assert (state.barrier.id, state.barrier.is_placed, state.barrier.reason) == (
        1,
        True,
        "operator",
    )
    assert (state.positions, state.global_step) == ((16, 14), 30)


def test_a_run_keeps_the_step_at_which_it_began_though_a_newer_checkpoint_exists(left, clock):
    cluster = coordinator(clock, left, checkpoint_step=25)
    _, told = join(cluster, Role.WORKER, 1)
    assert (last_state(told).first_step, last_state(told).global_step) == (0, 30)


def test_without_a_journal_the_first_worker_that_is_back_says_where_the_run_began(clock):
    cluster = coordinator(clock, checkpoint_step=25)
    assert cluster.state().first_step == 25
    join(cluster, Role.PS, 0)
    join(cluster, Role.WORKER, 0, first_step=7)
    join(cluster, Role.WORKER, 1, first_step=9)  # of some other run: who is here knows better
    assert cluster.state().first_step == 7


def test_a_worker_that_died_with_the_controller_is_replaced_where_it_stood(left, clock):
    cluster = coordinator(clock, left)
    join(cluster, Role.WORKER, 0)
    _, told = join(cluster, Role.WORKER, 1, "another")
    assert last_state(told).positions == (16, 14)


def test_what_a_worker_that_died_with_the_controller_had_trained_stays_counted(left, clock):
    left_out = {"left_out": LeftOut(1, 10, 2), "left_out_before": LeftOut(late_files=3)}
    before = replace(left.workers[1], examples=70, examples_before=5, **left_out)
    cluster = coordinator(clock, replace(left, workers=(left.workers[0], before)))
    join(cluster, Role.WORKER, 0)
    join(cluster, Role.WORKER, 1, "another")
    seats = [seat for seat, _, _ in cluster.seats()]
    assert [seat.examples_before for seat in seats] == [0, 0, 0, 75]
    assert [seat.left_out for seat in seats] == [LeftOut()] * 3 + [LeftOut(1, 10, 5)]


def test_a_ps_that_died_with_the_controller_is_waited_for_and_then_missed(left, clock):
    cluster = coordinator(clock, left)
    for role, index in ((Role.PS, 0), (Role.WORKER, 0), (Role.WORKER, 1)):
        session, told = join(cluster, role, index)
    assert last_state(told).phase is Phase.RUNNING
    clock.now += SUSPECT_S + 1
    cluster.report_worker(session, WorkerReport(global_step=30))
    cluster.watch()
    assert last_state(told).phase is Phase.FORMING
    replacement, _ = join(cluster, Role.PS, 1, "another")
    cluster.report_ps(replacement, PsReport(is_ready=True))
    assert cluster.current_routing().epoch == 2


def test_without_a_single_survivor_it_is_a_new_run_above_the_old_epochs(left, clock):
    cluster = coordinator(clock, left, checkpoint_step=12)
    for index in range(2):
        cluster.report_ps(join(cluster, Role.PS, index, f"new-{index}")[0], PsReport(is_ready=True))
        assert cluster.state().phase is Phase.FORMING  # a worker of the old run may still be back
    join(cluster, Role.WORKER, 0, "new-2")
    _, told = join(cluster, Role.WORKER, 1, "new-3")
    state = last_state(told)
    assert state.phase is Phase.INITIALIZING
    assert state.routing.epoch == 2
    assert not state.barrier.is_placed
    assert (state.positions, state.global_step, state.first_step) == ((0, 0), 12, 12)


def test_survivors_are_waited_for_only_so_long(left, clock):
    cluster = coordinator(clock, left)
    for index in range(2):
        cluster.report_ps(join(cluster, Role.PS, index, f"new-{index}")[0], PsReport(is_ready=True))
    clock.now += SUSPECT_S + 1
    cluster.watch()
    assert cluster.state().phase is Phase.INITIALIZING
    assert cluster.state().positions == (0, 0)


def test_a_cluster_of_another_size_is_a_new_run(left, clock):
    cluster = coordinator(clock, left, num_workers=1)
    for index in range(2):
        cluster.report_ps(join(cluster, Role.PS, index)[0], PsReport(is_ready=True))
    assert cluster.current_routing().epoch == 2
    assert not cluster.state().barrier.is_placed


def test_a_journal_comes_back_from_disk_as_it_was(left, tmp_path):
    left_out = {"left_out": LeftOut(1, 10, 2), "left_out_before": LeftOut(late_files=3)}
    worker = replace(left.workers[1], **left_out)
    left = replace(left, workers=(left.workers[0], worker))
    keeper = JournalKeeper(tmp_path, lambda: left)
    keeper.start()
    keeper.flush()
    assert journal_file.read(tmp_path) == left
    keeper.stop(is_over=False)
    assert journal_file.read(tmp_path) == left
    assert [path.name for path in tmp_path.iterdir()] == [job_files.JOURNAL]


def test_the_end_of_a_job_leaves_no_journal(left, tmp_path):
    keeper = JournalKeeper(tmp_path, lambda: left)
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=True)
    assert journal_file.read(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"junk", b"[]", b"{}", b'{"format": 99}', b'{"format": 1, "epoch": 3}', b"\xff"],
)
def test_a_journal_that_cannot_be_read_is_no_journal(tmp_path, caplog, content):
    (tmp_path / job_files.JOURNAL).write_bytes(content)
    assert journal_file.read(tmp_path) is None
    assert "cannot be read" in caplog.text


def test_a_journal_that_cannot_be_set_aside_is_said_to_be_overwritten(
    tmp_path, caplog, monkeypatch
):
    (tmp_path / job_files.JOURNAL).write_bytes(b"junk")

    def fail(*paths):
        raise PermissionError("not yours")

    monkeypatch.setattr(journal_file.os, "replace", fail)
    assert journal_file.read(tmp_path) is None
    assert "stays where it is and will be overwritten: not yours" in caplog.text


def test_a_full_disk_is_said_once_and_the_controller_goes_on(left, tmp_path, caplog):
    versions = iter(range(1000))
    keeper = JournalKeeper(tmp_path / "gone", lambda: (next(versions), left)[1])
    keeper.start()
    keeper.flush()
    keeper.flush()
    keeper.stop(is_over=False)
    assert caplog.text.count("cannot be written") == 1


def test_a_keeper_says_why_it_cannot_write_until_it_can(left, tmp_path):
    directory = tmp_path / "gone"
    keeper = JournalKeeper(directory, lambda: left)
    keeper.start()
    keeper.flush()
    assert keeper.error == f"{directory / job_files.JOURNAL}: No such file or directory"
    directory.mkdir()
    keeper.flush()
    assert keeper.error == ""
    assert journal_file.read(directory) == left
    keeper.stop(is_over=False)


@pytest.mark.timeout(60)
def test_a_keeper_that_cannot_write_in_time_says_so_when_a_flush_returns(
    left, tmp_path, monkeypatch
):
    go_on = threading.Event()
    monkeypatch.setattr(journal_file, "_FLUSH_S", 0.2)
    keeper = JournalKeeper(tmp_path, lambda: left, may_write=lambda: go_on.wait(30))
    keeper.start()
    keeper.flush()
    assert keeper.error == f"{tmp_path / job_files.JOURNAL}: not written after 0 s"
    go_on.set()
    wait_until(lambda: keeper.error == "")
    keeper.stop(is_over=False)


def test_what_a_newer_controller_wrote_into_the_journal_is_ignored_and_the_hold_is_kept(
    left, tmp_path, caplog
):
    keeper = JournalKeeper(tmp_path, lambda: left)
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=False)
    path = tmp_path / job_files.JOURNAL
    content = json.loads(path.read_bytes())
    content["colour"] = "blue"
    content["workers"][0]["mood"] = "good"
    content["barrier"]["holders"][0]["until"] = 7
    path.write_text(json.dumps(content))

    assert journal_file.read(tmp_path) == left
    assert left.barrier.is_placed
    for field in ("colour of Journal", "mood of JournaledMember", "until of Holder"):
        assert field in caplog.text


def test_the_journal_of_a_controller_that_did_not_note_maps_tells_of_one_by_its_epoch(
    left, tmp_path
):
    keeper = JournalKeeper(tmp_path, lambda: left)
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=False)
    path = tmp_path / job_files.JOURNAL
    content = json.loads(path.read_bytes())
    del content["was_mapped"]
    path.write_text(json.dumps(content))
    assert journal_file.read(tmp_path).was_mapped


def ready(cluster, *incarnations, **changes):
    for index, incarnation in enumerate(incarnations):
        cluster.report_ps(
            join(cluster, Role.PS, index, incarnation, **changes)[0], PsReport(is_ready=True)
        )


def test_a_run_that_goes_on_keeps_its_id_and_its_instances(left, clock):
    cluster = coordinator(clock, left)
    join(cluster, Role.PS, 0, run_id=left.run_id)
    routing = cluster.current_routing()
    assert routing.run_id == left.run_id != ""
    assert len(set(routing.instances)) == 2
    assert not set(routing.instances) & {
        "ps-0",
        "ps-1",
    }  # with its incarnation anybody could take a seat
    with pytest.raises(WrongRun, match="this client is of run 0123"):
        cluster.current_routing("0123")


def test_a_replaced_ps_is_another_instance_of_the_same_run(left, clock):
    cluster = coordinator(clock, left)
    join(cluster, Role.WORKER, 0)
    before = cluster.current_routing()
    clock.now += SUSPECT_S + 1
    cluster.watch()
    ready(cluster, "ps-0", "another")
    after = cluster.current_routing()
    assert (after.run_id, after.instances[0]) == (before.run_id, before.instances[0])
    assert after.instances[1] != before.instances[1]


def test_a_new_run_has_an_id_of_its_own_and_refuses_who_was_in_the_old_one(left, clock):
    cluster = coordinator(clock, left)
    clock.now += SUSPECT_S + 1
    cluster.watch()
    ready(cluster, "new-0", "new-1")
    assert cluster.current_routing().run_id not in ("", left.run_id)
    with pytest.raises(
        NotInCluster, match="began from the newest checkpoint without it; start the process again"
    ):
        join(cluster, Role.WORKER, 0, run_id=left.run_id)


def test_without_a_journal_the_first_member_that_is_back_names_the_run(clock):
    cluster = coordinator(clock)
    ready(cluster, "ps-0", "ps-1", run_id="abcd")
    assert cluster.current_routing().run_id == "abcd"
    with pytest.raises(NotInCluster):
        join(cluster, Role.WORKER, 0, run_id="0123")


def test_while_it_is_not_known_whether_a_run_goes_on_nobody_is_shown_its_map(left, clock):
    cluster = coordinator(clock, left)
    _, told = join(cluster, Role.PS, 0, "new-0")
    assert last_state(told).routing is None


def test_a_member_of_a_run_that_has_ended_is_refused_also_without_a_journal(clock):
    cluster = coordinator(clock, ended_runs=["over", "later"])
    with pytest.raises(NotInCluster, match="has been in run over, which has ended"):
        join(cluster, Role.PS, 0, run_id="over")
    assert cluster.run_id != "over"
    join(cluster, Role.PS, 0)


def test_members_of_the_journal_that_listen_are_waited_for_a_while(left, clock):
    listening = ["ps-0:1"]
    cluster = coordinator(
        clock, left, find_alive=lambda addresses: [a for a in addresses if a in listening]
    )
    for _ in range(40):
        clock.now += 1.0
        cluster.watch()
    join(cluster, Role.PS, 0, run_id=left.run_id)
    assert cluster.current_routing().run_id == left.run_id
    assert cluster.current_routing().epoch == left.epoch


def test_members_that_listen_and_never_come_do_not_hold_up_a_new_run_for_ever(left, clock):
    cluster = coordinator(clock, left, find_alive=lambda addresses: addresses)
    for _ in range(70):
        clock.now += 1.0
        cluster.watch()
    assert cluster.run_id != left.run_id


def test_pushes_that_come_during_a_save_are_not_saved_and_the_next_controller_knows(clock):
    cluster = coordinator(clock, num_workers=0)
    sessions = [join(cluster, Role.PS, index)[0] for index in range(2)]
    for session in sessions:
        cluster.report_ps(session, PsReport(is_ready=True, pushes=10))
    assert cluster.has_unsaved_pushes
    cluster.report_ps(sessions[1], PsReport(is_ready=True, pushes=14))
    cluster.checkpoint_saved("/m/model.ckpt-0", 1.0, {sessions[0]: 10, sessions[1]: 12})
    assert cluster.has_unsaved_pushes
    cluster.checkpoint_saved("/m/model.ckpt-r1-0", 2.0, {sessions[0]: 10, sessions[1]: 14})
    assert not cluster.has_unsaved_pushes
    after = coordinator(clock, cluster.journal(), num_workers=0)
    again = join(after, Role.PS, 0)[0]
    after.report_ps(again, PsReport(is_ready=True, pushes=10))
    assert not after.has_unsaved_pushes
    after.report_ps(again, PsReport(is_ready=True, pushes=11))
    assert after.has_unsaved_pushes


def test_the_outcome_of_a_job_whose_controller_died_is_told_by_the_next_one(left, clock):
    ended = coordinator(clock, left)
    join(ended, Role.WORKER, 0)
    ended.end(True, "all workers finished")
    after = coordinator(clock, ended.journal())
    assert after.outcome == (True, "all workers finished")
    assert after.state().phase is Phase.FINISHED
    assert after.journal().outcome == ended.journal().outcome


def kept(directory, left):
    """The journal as the next controller of a job "j" with 2 ps and 2 workers finds it, so long
    after the outcome."""
    keeper = JournalKeeper(directory, lambda: left)
    keeper.start()
    keeper.flush()
    keeper.stop(is_over=False)
    return lambda later_s, job="j", shape=(2, 2): journal_file.left_for(
        directory, job, shape, 1000.0 + later_s
    )


def test_an_outcome_is_told_again_only_by_a_controller_that_takes_the_place_of_the_dead_one(
    left, tmp_path
):
    ended = replace(left, job="j", outcome=journal.Outcome(True, "all workers finished", 1000.0))
    find = kept(tmp_path, ended)
    assert find(5.0) == ended
    assert job_files.ended_runs(tmp_path) == ()
    assert find(5.0, shape=(3, 2)) is None
    assert find(3600.0) is None
    assert job_files.ended_runs(tmp_path) == (left.run_id,)


def test_the_journal_of_another_job_is_that_of_another_run(left, tmp_path):
    find = kept(tmp_path, replace(left, job="j"))
    assert find(5.0) == replace(left, job="j")
    assert find(5.0, job="copy") is None


def test_a_report_that_is_refused_counts_no_unknown_pushes(left, clock):
    cluster = coordinator(clock, left)
    session, _ = join(cluster, Role.WORKER, 0)
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            cluster.report_worker(session, WorkerReport(global_step=2**60, pushes_unknown=7))
    assert cluster.pushes_unknown == 0


@pytest.fixture
def unclean(clock):
    """The journal of a controller that died with its members at step 900, with 5,000 rows in two
    ps."""

    def made(num_workers):
        cluster = coordinator(clock, num_workers=num_workers)
        for index in range(2):
            load = PsReport(is_ready=True, rows=2_500, pushes=9, restored=RestoreReport())
            cluster.report_ps(join(cluster, Role.PS, index)[0], load)
        for index in range(num_workers):
            worker, _ = join(cluster, Role.WORKER, index)
            cluster.report_worker(
                worker, WorkerReport(global_step=900, initialized_epoch=1, has_begun=True)
            )
        return cluster.journal()

    return made


def restored(cluster, num_ps, rows):
    """New parameter servers that have begun from the checkpoint of step 100."""
    for index in range(num_ps):
        session, _ = join(cluster, Role.PS, index, f"new-{index}")
        begun = RestoreReport("/m/model.ckpt-100", 100, rows=rows)
        cluster.report_ps(session, PsReport(is_ready=True, rows=rows, restored=begun))
    return [loss.what for loss in cluster.losses()[1]]


@pytest.mark.parametrize("shape", [(3, 2), (2, 1)])
def test_what_a_run_of_another_shape_has_lost_is_said(unclean, clock, shape):
    cluster = Coordinator(
        *shape, patience=PATIENCE, journal=unclean(2), clock=clock, checkpoint_step=100
    )
    (said,) = restored(cluster, shape[0], 1_000)
    lost = 5_000 - shape[0] * 1_000
    assert cluster.losses()[0] == lost
    assert said == (
        f"the last run ended at step 900 with 5,000 rows, this one has {shape[0] * 1_000:,} of them: {lost:,} rows are "
        "lost, and so are the updates since checkpoint /m/model.ckpt-100 (step 100)"
    )


def test_steps_of_the_last_run_are_lost_also_when_its_servers_come_late(unclean, clock):
    cluster = coordinator(clock, unclean(2), checkpoint_step=100)
    clock.now += SUSPECT_S + 1
    cluster.watch()  # this is a new run now, at the step of the checkpoint
    said = restored(cluster, 2, 2_500)
    assert len(said) == 2
    assert (
        "starts from checkpoint /m/model.ckpt-100 (step 100). Lost: all updates since. " in said[0]
    )


def test_pushes_of_clients_are_lost_with_controller_and_servers(unclean, clock):
    cluster = coordinator(clock, unclean(0), num_workers=0)
    clock.now += SUSPECT_S + 1
    cluster.watch()
    assert len(restored(cluster, 2, 2_500)) == 2


def test_a_controller_that_is_forming_knows_who_is_in(left, clock):
    cluster = coordinator(clock, replace(left, routed=()))
    join(cluster, Role.WORKER, 1)
    with pytest.raises(NotReady, match="forming") as refused:
        cluster.current_routing()
    assert not isinstance(refused.value, RunUndecided)


def test_a_controller_that_was_replaced_renews_no_lease_and_gives_no_map(clock):
    is_replaced = False

    def check():
        if is_replaced:
            raise NotReady("a newer controller serves")

    cluster = coordinator(clock, num_workers=0, check_current=check)
    servers = [join(cluster, Role.PS, index, has_lease=True)[0] for index in range(2)]
    for session in servers:
        cluster.report_ps(session, PsReport(is_ready=True))
    assert cluster.renew(servers[0], is_last=False)
    assert cluster.current_routing().epoch == 1
    is_replaced = True
    clock.now += 1.0
    with pytest.raises(NotReady, match="newer"):
        cluster.renew(servers[0], is_last=False)
    with pytest.raises(NotReady, match="newer"):
        cluster.current_routing()


def test_cursors_go_on_with_a_run_and_those_of_the_checkpoint_with_a_new_one(clock):
    cluster = coordinator(clock, first_cursors=(b"a\x00", b"b"))
    for index in range(2):
        cluster.report_ps(join(cluster, Role.PS, index)[0], PsReport(is_ready=True))
    worker, _ = join(cluster, Role.WORKER, 0)
    assert cluster.cursors() == (b"a\x00", b"b")
    cluster.report_worker(
        worker, WorkerReport(initialized_epoch=1, position=5, cursor=b"\xff5", has_begun=True)
    )
    assert cluster.cursors() == (b"\xff5", b"b")
    left = cluster.journal()

    again = coordinator(clock, left, first_cursors=(b"newer", b"newer"))
    _, told = join(again, Role.WORKER, 0)
    assert last_state(told).cursors == (b"\xff5", b"")
    assert last_state(told).first_cursors == (b"a\x00", b"b")
    again.report_worker(join(again, Role.WORKER, 0)[0], WorkerReport())  # it has not begun yet
    assert again.cursors() == (b"\xff5", b"b")


def test_cursors_of_another_number_of_workers_stay_until_all_have_begun(clock):
    cluster = coordinator(clock, checkpoint_step=10, first_cursors=(b"a", b"b", b"c"))
    for index in range(2):
        cluster.report_ps(join(cluster, Role.PS, index)[0], PsReport(is_ready=True))
    workers = [join(cluster, Role.WORKER, index)[0] for index in range(2)]
    begun = WorkerReport(initialized_epoch=1, position=5, has_begun=True, global_step=15)
    cluster.report_worker(workers[0], replace(begun, cursor=b"first"))
    assert cluster.cursors() == (b"a", b"b", b"c")
    assert cluster.cursors_step() == 10  # the steps since then are trained again

    again = coordinator(clock, cluster.journal())
    workers = [join(again, Role.WORKER, index)[0] for index in range(2)]
    assert again.cursors() == (b"a", b"b", b"c")
    again.report_worker(workers[1], replace(begun, cursor=b"second"))
    assert again.cursors() == (b"first", b"second")
    assert again.cursors_step() == 15


def test_a_worker_that_begins_at_the_start_of_its_input_has_begun(clock):
    """An empty cursor is the start: without a batch in its share it never reports another."""
    cluster = coordinator(clock, checkpoint_step=10, first_cursors=(b"a", b"b", b"c"))
    for index in range(2):
        cluster.report_ps(join(cluster, Role.PS, index)[0], PsReport(is_ready=True))
    workers = [join(cluster, Role.WORKER, index)[0] for index in range(2)]
    begun = WorkerReport(initialized_epoch=1, has_begun=True, global_step=15)
    cluster.report_worker(workers[0], replace(begun, position=5, cursor=b"first"))
    assert cluster.cursors() == (b"a", b"b", b"c")
    cluster.report_worker(workers[1], begun)
    assert cluster.cursors() == (b"first", b"")
    assert cluster.cursors_step() == 15


def test_a_run_that_does_not_go_on_leaves_its_cursors_behind(left, clock):
    workers = tuple(replace(worker, cursor="ZW5k") for worker in left.workers)
    cluster = coordinator(
        clock, replace(left, workers=workers), checkpoint_step=12, first_cursors=(b"x", b"y")
    )
    clock.now += 1000
    cluster.watch()
    assert cluster.cursors() == (b"x", b"y")
    assert cluster.state().cursors == (b"", b"")
