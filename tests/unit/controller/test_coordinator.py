import threading
import time
from dataclasses import replace

import pytest
import time_machine

from megalith.controller.codec import encode_seat
from megalith.controller.coordinator import Coordinator
from megalith.controller.members.directives import (
    ClusterState,
    Phase,
    ReportOrder,
    SaveShard,
    SessionEnd,
    ShutdownOrder,
)
from megalith.controller.members.roster import Patience, Registration, Role, Standing
from megalith.controller.saving.schedule import SaveSchedule
from megalith.errors import BarrierAlreadyPlaced, NotInCluster, NotReady
from megalith.runtime.joining.lease import LEASE_MARGIN_S, LEASE_S
from megalith.wire.reports import LeftOut, PsReport, RestoreReport, WorkerReport
from support.waiting import wait_until

SILENCE_S, SUSPECT_S, LOST_S = 10.0, 5.0, 60.0
PATIENCE = Patience(silence_s=SILENCE_S, suspect_s=SUSPECT_S, lost_worker_s=LOST_S)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Member:
    """A fake session: remembers what it was told."""

    def __init__(self, cluster, role, index, incarnation="one", **changes):
        self.told = []
        address = f"{role}-{index}:{incarnation}"
        self.registration = Registration(role, index, address, incarnation=incarnation, **changes)
        self.session = cluster.join(self.registration, self.told.append)

    @property
    def state(self):
        return [item for item in self.told if isinstance(item, ClusterState)][-1]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cluster(clock):
    return Coordinator(2, 2, patience=PATIENCE, clock=clock)


def formed(cluster):
    """Two ready ps and two workers, the chief done with its tables."""
    servers = [Member(cluster, Role.PS, index) for index in range(2)]
    workers = [Member(cluster, Role.WORKER, index) for index in range(2)]
    for server in servers:
        cluster.report_ps(server.session, PsReport(is_ready=True))
    cluster.report_worker(workers[0].session, WorkerReport(initialized_epoch=1))
    return servers, workers


def test_the_map_appears_when_every_ps_is_ready(cluster):
    first = Member(cluster, Role.PS, 0)
    cluster.report_ps(first.session, PsReport(is_ready=True))
    with pytest.raises(NotReady, match=r"waiting for ps-1$"):
        cluster.current_routing()
    second = Member(cluster, Role.PS, 1)
    assert second.state.phase is Phase.FORMING
    cluster.report_ps(second.session, PsReport(is_ready=True))
    assert first.state.phase is Phase.INITIALIZING
    assert first.state.routing.addresses == ("ps-0:one", "ps-1:one")
    assert first.state.routing.epoch == 1


def test_training_may_run_once_the_chief_is_done(cluster):
    _, workers = formed(cluster)
    assert workers[1].state.phase is Phase.RUNNING


def test_without_workers_the_cluster_runs_as_soon_as_it_is_formed(clock):
    cluster = Coordinator(1, 0, patience=PATIENCE, clock=clock)
    server = Member(cluster, Role.PS, 0)
    cluster.report_ps(server.session, PsReport(is_ready=True))
    assert server.state.phase is Phase.RUNNING


def test_a_replaced_ps_makes_a_new_epoch_even_at_its_old_address(cluster):
    servers, workers = formed(cluster)
    cluster.leave(servers[1].session)
    told = []
    registration = Registration(Role.PS, 1, "ps-1:one", incarnation="two")
    session = cluster.join(registration, told.append)
    assert workers[0].state.phase is Phase.FORMING
    cluster.report_ps(session, PsReport(is_ready=True))
    assert workers[0].state.phase is Phase.INITIALIZING
    assert workers[0].state.routing.epoch == 2
    cluster.report_worker(workers[0].session, WorkerReport(initialized_epoch=2))
    assert workers[1].state.phase is Phase.RUNNING


def test_a_ps_that_only_lost_its_stream_keeps_the_epoch(cluster):
    servers, workers = formed(cluster)
    cluster.leave(servers[1].session)
    again = Member(cluster, Role.PS, 1)
    cluster.report_ps(again.session, PsReport(is_ready=True))
    assert workers[0].state.phase is Phase.RUNNING
    assert workers[0].state.routing.epoch == 1


def test_a_restarted_controller_goes_on_above_every_epoch_it_hears_of(cluster):
    servers = [Member(cluster, Role.PS, index, epoch=41) for index in range(2)]
    for server in servers:
        cluster.report_ps(server.session, PsReport(is_ready=True))
    assert cluster.current_routing().epoch == 42


def test_a_late_member_with_a_newer_epoch_makes_a_map_above_it(cluster):
    """Controller and ps restarted, the chief survived: its tables are gone, and it must not count
    as initialized."""
    for index in range(2):
        cluster.report_ps(Member(cluster, Role.PS, index).session, PsReport(is_ready=True))
    assert cluster.current_routing().epoch == 1
    chief = Member(cluster, Role.WORKER, 0, epoch=7, initialized_epoch=7)
    assert cluster.current_routing().epoch == 8
    assert chief.state.phase is Phase.INITIALIZING


def test_the_barrier_is_placed_once_and_told_to_everyone(cluster):
    _, workers = formed(cluster)
    cluster.place_barrier()
    assert workers[1].state.barrier.is_placed
    with pytest.raises(BarrierAlreadyPlaced, match=r"Barrier is placed already\."):
        cluster.place_barrier()
    cluster.remove_barrier()
    cluster.remove_barrier()
    assert not workers[1].state.barrier.is_placed


def test_a_worker_that_joins_during_a_barrier_is_told_at_once(cluster):
    cluster.place_barrier()
    assert Member(cluster, Role.WORKER, 1).state.barrier.is_placed


def test_block_status_covers_every_worker(cluster):
    _, workers = formed(cluster)
    cluster.place_barrier()
    assert cluster.block_status() == ([], [0, 1])
    cluster.report_worker(workers[1].session, WorkerReport(is_blocked=True, barrier_id=1))
    assert cluster.block_status() == ([1], [0])
    cluster.report_worker(
        workers[0].session, WorkerReport(is_blocked=True, barrier_id=1, initialized_epoch=1)
    )
    assert cluster.block_status() == ([0, 1], [])
    cluster.leave(workers[1].session)
    assert cluster.block_status() == ([0], [1])


@pytest.mark.golden("G29")
def test_a_second_barrier_is_refused_and_a_resume_unblocks(clock):
    cluster = Coordinator(1, 1, patience=PATIENCE, clock=clock)
    cluster.place_barrier()
    with pytest.raises(BarrierAlreadyPlaced):
        cluster.place_barrier()
    assert cluster.block_status()[0] == [0]
    cluster.remove_barrier()
    assert cluster.block_status()[0] == []


def test_the_step_is_the_newest_that_anyone_reported(cluster):
    _, workers = formed(cluster)
    cluster.report_worker(workers[0].session, WorkerReport(global_step=10, initialized_epoch=1))
    cluster.report_worker(workers[1].session, WorkerReport(global_step=8))
    assert cluster.global_step == 10


def test_a_replacement_goes_on_where_the_lost_worker_stood(cluster):
    _, workers = formed(cluster)
    cluster.report_worker(
        workers[1].session, WorkerReport(position=17, global_step=30, has_begun=True)
    )
    cluster.leave(workers[1].session)
    again = Member(cluster, Role.WORKER, 1, "two")
    assert (again.state.positions, again.state.global_step) == ((0, 17), 30)
    cluster.report_worker(again.session, WorkerReport())
    assert cluster.state().positions == (0, 17)  # it has not begun: its 0 says nothing


def test_what_a_replaced_worker_had_trained_stays_counted(cluster):
    _, workers = formed(cluster)
    said = WorkerReport(
        examples=500, skipped_batches=1, skipped_messages=10, late_files=2, missing_values=7
    )
    cluster.report_worker(workers[1].session, said)
    cluster.leave(workers[1].session)
    again = Member(cluster, Role.WORKER, 1, "two")
    cluster.report_worker(again.session, WorkerReport(examples=30, late_files=3, missing_values=8))
    cluster.leave(again.session)
    cluster.leave(Member(cluster, Role.WORKER, 1, "two").session)  # the same one: it counts on
    Member(cluster, Role.WORKER, 1, "three")
    seat = cluster.seats()[3][0]
    assert (seat.name, seat.examples_before, seat.progress.examples) == ("worker-1", 530, 0)
    assert seat.left_out == LeftOut(1, 10, 5, 15)

    said = encode_seat(seat, Standing.ALIVE, 0.0, {}).worker
    assert (said.skipped_batches, said.skipped_messages, said.late_files) == (1, 10, 5)
    assert said.missing_values == 15


def test_reports_are_asked_for_and_waited_for(cluster):
    _, workers = formed(cluster)
    late = []
    asking = threading.Thread(target=lambda: late.append(cluster.ask_for_reports(60.0)))
    asking.start()
    for worker in workers:
        wait_until(lambda: any(isinstance(each, ReportOrder) for each in worker.told))  # noqa: B023
    (order,) = [each for each in workers[0].told if isinstance(each, ReportOrder)]
    cluster.report_worker(workers[0].session, WorkerReport(global_step=20))
    cluster.has_reported(workers[0].session, order.number)
    assert not late
    cluster.leave(workers[1].session)  # whoever is gone is not waited for
    asking.join(60.0)
    assert late == [[]]
    assert cluster.global_step == 20


def test_a_worker_that_hangs_is_not_waited_for_longer_than_asked(cluster):
    _, workers = formed(cluster)
    assert cluster.ask_for_reports(0.0) == [0, 1]
    cluster.has_reported(workers[0].session, 1)
    cluster.has_reported(workers[1].session, 2**60)  # of no order that was given
    assert cluster.ask_for_reports(0.0) == [0, 1]


def test_a_ps_that_may_come_back_has_not_said_what_it_has_applied(cluster, clock):
    """Its session alone was lost: it serves on, and the next session brings its report."""
    servers, _ = formed(cluster)

    cluster.leave(servers[1].session)

    heard = []

    def hear(timeout_s):
        """While the other one reports, again and again."""
        hearing = threading.Thread(
            target=lambda: heard.append(cluster.hear_all_ps(lambda: False, timeout_s))
        )
        hearing.start()
        while hearing.is_alive():
            cluster.report_ps(servers[0].session, PsReport(is_ready=True))
            hearing.join(0.01)

    hear(0.3)
    clock.now += SUSPECT_S + 1
    cluster.watch()
    hear(60.0)
    assert heard == [False, True], "it is dead by then"


def test_a_silent_member_loses_its_place(cluster, clock):
    servers, workers = formed(cluster)
    clock.now += SILENCE_S - 1
    cluster.report_worker(workers[0].session, WorkerReport(initialized_epoch=1))
    clock.now += 2
    cluster.watch()
    assert cluster.is_alive(workers[0].session)
    assert not cluster.is_alive(servers[0].session)
    assert workers[0].state.phase is Phase.FORMING


def test_a_taken_over_session_is_told_to_end_and_its_reports_are_ignored(cluster, clock):
    _, workers = formed(cluster)
    clock.now += 5
    Member(cluster, Role.WORKER, 1, "two")
    assert isinstance(workers[1].told[-2], ShutdownOrder)
    assert isinstance(workers[1].told[-1], SessionEnd)
    cluster.report_worker(workers[1].session, WorkerReport(global_step=999))
    assert cluster.global_step == 0


def test_unchanged_state_is_not_sent_again(cluster):
    _, workers = formed(cluster)
    count = len(workers[1].told)
    for step in range(5):
        cluster.report_worker(
            workers[0].session, WorkerReport(global_step=step, initialized_epoch=1)
        )
    assert len(workers[1].told) == count


def test_workers_are_done_when_each_is_finished_or_lost_for_long(cluster, clock):
    _, workers = formed(cluster)
    cluster.report_worker(workers[0].session, WorkerReport(is_finished=True, initialized_epoch=1))
    cluster.leave(workers[1].session)
    assert workers[0].state.finished_workers == (0,)
    clock.now += LOST_S + 1
    cluster.watch()
    assert cluster.wait_until_workers_finish(lambda: False)


def test_the_first_end_decides_the_outcome(cluster):
    servers, _ = formed(cluster)
    cluster.end(False, "killed")
    cluster.end(True, "too late")
    assert cluster.outcome == (False, "killed")
    assert servers[0].state.phase is Phase.FINISHED
    assert not cluster.wait_until_workers_finish(lambda: False)


def test_a_ps_whose_session_was_lost_a_moment_ago_is_waited_for(cluster):
    """After a controller was started again, its ps come back one after the other."""
    servers, _ = formed(cluster)
    cluster.leave(servers[0].session)
    ordered = []

    def save():
        cluster.wait_for_returning_ps()
        ordered.extend(cluster.order_save(SaveShard("id", "/somewhere", 1)))

    saving = threading.Thread(target=save)
    saving.start()
    again = Member(cluster, Role.PS, 0)
    cluster.report_ps(again.session, PsReport(is_ready=True))
    saving.join(30)
    assert ordered == [again.session, servers[1].session]


def test_a_ps_that_was_replaced_is_waited_for_until_all_tables_are_there(cluster):
    servers, workers = formed(cluster)
    cluster.leave(servers[0].session)
    waiting = threading.Thread(target=cluster.wait_for_returning_ps)

    def is_waiting():
        waiting.join(0.05)
        return waiting.is_alive()

    waiting.start()
    assert is_waiting()  # it is lost
    again = Member(cluster, Role.PS, 0, "two")
    assert is_waiting()  # it restores
    cluster.report_ps(again.session, PsReport(is_ready=True))
    assert cluster.state().phase is Phase.INITIALIZING
    assert is_waiting()  # the chief creates what it lacks
    cluster.report_worker(workers[0].session, WorkerReport(initialized_epoch=2))
    waiting.join(30)
    assert not waiting.is_alive()
    assert cluster.order_save(SaveShard("id", "/somewhere", 1))


def test_a_ps_or_a_chief_that_nobody_has_seen_is_not_waited_for(cluster):
    begin = time.monotonic()
    cluster.wait_for_returning_ps()
    for index in range(2):
        cluster.report_ps(Member(cluster, Role.PS, index).session, PsReport(is_ready=True))

    assert cluster.state().phase is Phase.INITIALIZING
    cluster.wait_for_returning_ps()
    assert time.monotonic() - begin < 5


def test_a_save_is_ordered_from_every_ps_and_needs_all_of_them(cluster):
    servers, _ = formed(cluster)
    order = SaveShard("id", "/somewhere", 1)
    assert cluster.order_save(order) == [server.session for server in servers]
    assert [server.told[-1] for server in servers] == [order, order]
    cluster.leave(servers[0].session)
    with pytest.raises(NotReady, match=r"waiting for ps-0$"):
        cluster.order_save(order)


def test_dismissed_members_are_told_and_waited_for(cluster, caplog):
    servers, workers = formed(cluster)
    for member in (*servers, *workers[1:]):
        cluster.leave(member.session)
    cluster.dismiss("done", timeout_s=0.01)
    assert workers[0].told[-1] == ShutdownOrder("done")
    assert "worker-0 at worker-0:one was told to exit and is still here" in caplog.text
    assert "ps-0" not in caplog.text.rpartition("left role=")[2]


def test_a_lost_ps_is_suspect_while_training_goes_on_and_then_dead(cluster, clock):
    servers, workers = formed(cluster)
    cluster.leave(servers[1].session)
    assert standing(cluster, Role.PS, 1) is Standing.SUSPECT
    assert workers[0].state.phase is Phase.RUNNING
    clock.now += SUSPECT_S + 0.1
    cluster.watch()
    assert standing(cluster, Role.PS, 1) is Standing.DEAD
    assert workers[0].state.phase is Phase.FORMING
    back = Member(cluster, Role.PS, 1)
    assert standing(cluster, Role.PS, 1) is Standing.ALIVE
    assert back.state.phase is Phase.RUNNING
    assert back.state.routing.epoch == 1


def standing(cluster, role, index):
    (found,) = [s for seat, s, _ in cluster.seats() if (seat.role, seat.index) == (role, index)]
    return found


def test_a_controller_that_was_paused_drops_nobody_for_its_own_silence(cluster, clock):
    servers, workers = formed(cluster)
    cluster.watch()
    clock.now += 100 * SILENCE_S
    cluster.watch()
    assert all(cluster.is_alive(member.session) for member in (*servers, *workers))
    for _ in range(6):
        clock.now += SILENCE_S / 5
        cluster.watch()
    assert not any(cluster.is_alive(member.session) for member in (*servers, *workers))


def test_a_worker_blocked_at_an_older_barrier_does_not_count_for_the_next_one(cluster):
    _, workers = formed(cluster)
    cluster.place_barrier()
    cluster.report_worker(workers[1].session, WorkerReport(is_blocked=True, barrier_id=1))
    cluster.remove_barrier()
    assert cluster.block_status() == ([], [0, 1])
    cluster.place_barrier()
    assert cluster.block_status() == ([], [0, 1])
    cluster.report_worker(workers[1].session, WorkerReport(is_blocked=True, barrier_id=2))
    assert cluster.block_status() == ([1], [0])


def test_a_hold_waits_until_no_worker_can_step_and_lets_go_of_its_own_barrier_only(cluster, clock):
    _, workers = formed(cluster)
    cluster.report_worker(workers[1].session, WorkerReport(is_finished=True))
    held = []
    holding = threading.Thread(target=lambda: held.append(cluster.hold("Save", "save", 10.0)))
    holding.start()
    wait_until(lambda: cluster.state().barrier.is_placed)
    assert not held
    cluster.report_worker(
        workers[0].session, WorkerReport(is_blocked=True, barrier_id=1, initialized_epoch=1)
    )
    holding.join(30)
    assert workers[0].state.barrier.action == "Save"
    held[0]()
    assert not cluster.state().barrier.is_placed
    cluster.place_barrier()
    cluster.hold("Save", "save", 0.01)()
    assert cluster.state().barrier.is_placed


def test_a_hold_does_not_wait_for_dead_workers_and_is_bounded_for_others(cluster, clock):
    _, workers = formed(cluster)
    cluster.leave(workers[0].session)
    cluster.leave(workers[1].session)
    clock.now += SUSPECT_S + 1
    cluster.hold("Save", "save", 60.0)()
    Member(cluster, Role.WORKER, 1)
    let_go = cluster.hold("Save", "save", 0.01)
    assert cluster.moving_workers() == (1,)
    let_go()
    assert not cluster.state().barrier.is_placed


def test_a_worker_whose_share_is_over_takes_no_step_while_it_evaluates(cluster):
    """A save that the chief waits for leaves no batch behind that would be trained again."""
    _, workers = formed(cluster)
    over = WorkerReport(initialized_epoch=1, position=5, is_share_over=True)
    cluster.report_worker(workers[0].session, over)
    assert cluster.moving_workers() == (1,)
    cluster.report_worker(workers[1].session, replace(over, is_finished=True))
    assert cluster.moving_workers() == ()


def test_a_ps_of_another_job_is_refused(clock):
    cluster = Coordinator(1, 0, patience=PATIENCE, job="/models/a", clock=clock)
    with pytest.raises(
        NotInCluster, match="ps-0 belongs to job /models/b, this controller runs /models/a"
    ):
        Member(cluster, Role.PS, 0, job="/models/b")
    Member(cluster, Role.PS, 0, job="/models/a")


def test_a_ps_out_of_memory_is_reported_once_and_holds_training(cluster, caplog):
    servers, workers = formed(cluster)
    ill = PsReport(is_ready=True, complaint="Memory limit exceeded. Current: 9, Limit: 8")
    for _ in range(3):
        cluster.report_ps(servers[1].session, ill)
    assert caplog.text.count("PS are not healthy:") == 1
    assert "ps-1: Memory limit exceeded. Current: 9, Limit: 8" in caplog.text
    assert workers[0].state.barrier.reason == "ps-1: Memory limit exceeded. Current: 9, Limit: 8"
    cluster.remove_barrier()
    cluster.report_ps(servers[1].session, ill)
    assert not cluster.state().barrier.is_placed  # the operator has been told
    cluster.place_barrier()
    cluster.report_ps(servers[0].session, ill)
    assert caplog.text.count("PS are not healthy:") == 2
    assert cluster.state().barrier.reason == "operator"


def test_the_chief_s_word_ends_the_job_even_if_a_worker_never_finishes(cluster):
    _, workers = formed(cluster)
    cluster.report_worker(workers[0].session, WorkerReport(is_finished=True, initialized_epoch=1))
    assert cluster.wait_until_workers_finish(lambda: False)


def test_a_save_waits_for_the_chief_to_have_created_tables(cluster):
    for index in range(2):
        cluster.report_ps(Member(cluster, Role.PS, index).session, PsReport(is_ready=True))
    with pytest.raises(NotReady, match="the chief has not created all tables"):
        cluster.order_save(SaveShard("id", "/somewhere", 1))


@pytest.mark.parametrize("years", [-10, 10])
def test_a_jump_of_the_wall_clock_loses_nobody_and_brings_no_save(years):
    with time_machine.travel(1_790_000_000, tick=True) as travel:
        cluster = Coordinator(2, 2, patience=PATIENCE)  # with its real clock
        schedule = SaveSchedule(3600.0, 0, time.monotonic(), 0)
        servers, workers = formed(cluster)
        cluster.leave(workers[1].session)
        travel.shift(years * 365 * 86400)
        cluster.watch()
        assert all(cluster.is_alive(member.session) for member in (*servers, workers[0]))
        assert standing(cluster, Role.WORKER, 1) is Standing.SUSPECT
        assert servers[0].state.phase is Phase.RUNNING
        assert not schedule.is_due(time.monotonic(), 0)


def test_servers_with_a_part_of_the_model_end_the_job_before_anyone_hears_of_a_map(clock):
    asked = []
    parts = [RestoreReport("c", 1, rows=2), RestoreReport("c", 1, rows=3)]

    def fault(restored, *, is_first):
        asked.append((restored, is_first))
        return "c has 6 rows, restored 5"

    cluster = Coordinator(2, 1, patience=PATIENCE, clock=clock, restore_fault=fault)
    servers = [Member(cluster, Role.PS, index) for index in range(2)]
    worker = Member(cluster, Role.WORKER, 0)
    for server, part in zip(servers, parts, strict=True):
        cluster.report_ps(server.session, PsReport(is_ready=True, restored=part))
    assert asked[0] == (parts, True)
    assert cluster.outcome == (False, "c has 6 rows, restored 5")
    assert (worker.state.phase, worker.state.routing) == (Phase.FINISHED, None)
    with pytest.raises(NotReady):
        cluster.order_save(SaveShard("id", "/nowhere", 0))


def test_a_trained_run_whose_replacement_restored_too_little_is_saved_and_ends_without_a_map(clock):
    faults = ["", "c has 6 rows, restored 5"]
    cluster = Coordinator(
        2, 2, patience=PATIENCE, clock=clock, restore_fault=lambda restored, *, is_first: faults[0]
    )
    (first, _), _ = formed(cluster)
    assert cluster.outcome is None
    del faults[0]
    cluster.leave(first.session)
    clock.now += SUSPECT_S + 1
    replacement = Member(cluster, Role.PS, 0, "two")
    cluster.report_ps(
        replacement.session, PsReport(is_ready=True, restored=RestoreReport("c", 1, rows=5))
    )
    assert cluster.ending == (False, "c has 6 rows, restored 5")
    assert cluster.outcome is None
    assert replacement.state.routing.epoch == 1  # the old map, which it is not in
    sessions = cluster.order_save(SaveShard("id", "/nowhere", 0))
    assert len(sessions) == 2
    assert replacement.session in sessions
    assert cluster.lacks_rows  # so that what is saved is not what the next job starts from


def test_a_job_that_ends_is_saved_though_its_chief_died_before_it_created_what_a_new_ps_lacks(
    cluster, clock
):
    servers, workers = formed(cluster)
    cluster.leave(servers[1].session)
    clock.now += SUSPECT_S + 1
    replacement = Member(cluster, Role.PS, 1, "two")
    for server in (servers[0], replacement):
        cluster.report_ps(server.session, PsReport(is_ready=True))
    cluster.report_worker(workers[0].session, WorkerReport(initialized_epoch=1))
    assert workers[0].state.phase is Phase.INITIALIZING
    cluster.leave(workers[0].session)
    cluster.begin_end(False, "the chief has no restarts left")
    with pytest.raises(NotReady, match="the chief has not created"):
        cluster.order_save(SaveShard("id", "/nowhere", 0))  # it may be back in a moment
    clock.now += SUSPECT_S + 1
    for server in (servers[0], replacement):
        cluster.report_ps(server.session, PsReport(is_ready=True))
    assert len(cluster.order_save(SaveShard("id", "/nowhere", 0))) == 2


@pytest.mark.parametrize("num_workers", [10, 1000])
def test_a_report_without_news_looks_at_no_other_member(num_workers):
    looks = 0

    def clock():
        nonlocal looks
        looks += 1
        return 100.0

    cluster = Coordinator(2, num_workers, patience=PATIENCE, clock=clock)
    servers = [Member(cluster, Role.PS, index) for index in range(2)]
    for server in servers:
        cluster.report_ps(server.session, PsReport(is_ready=True))
    worker = Member(cluster, Role.WORKER, 3)
    cluster.report_worker(worker.session, WorkerReport(has_begun=True, global_step=1))
    before = looks
    for step in range(2, 102):
        cluster.report_worker(
            worker.session, WorkerReport(has_begun=True, global_step=step, position=step)
        )
        cluster.report_ps(servers[0].session, PsReport(is_ready=True, rows=step))
    assert looks - before == 200  # each member is heard, and that is all
    assert (cluster.global_step, cluster.state().positions[3]) == (101, 101)


def replaced_ps(cluster, clock, **changes):
    """A formed cluster whose ps-0 was heard now, left, and is replaced by one that is ready."""
    formed(cluster)
    holder = Member(cluster, Role.PS, 0, "one", has_lease=True)
    cluster.renew(holder.session, **{"is_last": False, **changes})
    cluster.leave(holder.session)
    clock.now += 0.1
    other = Member(cluster, Role.PS, 0, "two", has_lease=True)
    cluster.report_ps(other.session, PsReport(is_ready=True))
    return holder, other


def test_no_map_names_a_replacement_before_the_lease_of_its_predecessor_is_over(cluster, clock):
    heard_at = clock.now
    holder, _ = replaced_ps(cluster, clock)
    assert not cluster.renew(holder.session, is_last=False), "the seat is another's"
    clock.now = heard_at + LEASE_S
    cluster.watch()
    assert cluster.state().routing.epoch == 1
    assert cluster.state().phase is Phase.FORMING
    clock.now = heard_at + LEASE_S + LEASE_MARGIN_S
    cluster.watch()
    assert cluster.state().routing.epoch == 2
    assert cluster.state().routing.addresses[0] == "ps-0:two"


def test_a_lease_that_was_given_back_is_not_waited_for(cluster, clock):
    replaced_ps(cluster, clock, is_last=True)
    assert cluster.state().routing.epoch == 2


def test_a_worker_that_is_lost_counts_as_moving_until_its_lease_is_over(clock):
    cluster = Coordinator(1, 1, patience=replace(PATIENCE, suspect_s=1.0), clock=clock)
    worker = Member(cluster, Role.WORKER, 0, has_lease=True)
    cluster.leave(worker.session)
    cluster.place_barrier()
    clock.now += LEASE_S
    assert cluster.block_status() == ([], [0])
    clock.now += LEASE_MARGIN_S
    assert cluster.block_status() == ([0], [])


def test_a_worker_that_was_replaced_counts_as_moving_until_its_lease_is_over(clock):
    cluster = Coordinator(1, 1, patience=PATIENCE, clock=clock)
    worker = Member(cluster, Role.WORKER, 0, has_lease=True)
    cluster.leave(worker.session)
    clock.now += 1.0
    other = Member(cluster, Role.WORKER, 0, "two", has_lease=True)
    cluster.place_barrier()
    cluster.report_worker(other.session, WorkerReport(is_blocked=True, barrier_id=1))
    assert cluster.block_status() == ([], [0])
    clock.now += LEASE_S
    cluster.report_worker(other.session, WorkerReport(is_blocked=True, barrier_id=1))
    assert cluster.block_status() == ([0], [])


def test_a_worker_that_gave_its_lease_back_is_not_waited_for(clock):
    cluster = Coordinator(1, 1, patience=PATIENCE, clock=clock)
    worker = Member(cluster, Role.WORKER, 0, has_lease=True)
    cluster.renew(worker.session, is_last=True)
    cluster.leave(worker.session)
    cluster.place_barrier()
    assert cluster.block_status() == ([0], [])
