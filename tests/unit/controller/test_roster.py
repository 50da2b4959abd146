import pytest

from megalith.controller.members.roster import (
    Patience,
    PsReport,
    Registration,
    Role,
    Roster,
    WorkerReport,
)
from megalith.errors import IndexTaken, NotInCluster


def registration(role=Role.PS, index=0, incarnation="one", **changes):
    return Registration(role, index, f"host:{incarnation}", incarnation=incarnation, **changes)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def roster(clock):
    return Roster(2, 1, Patience(silence_s=10.0, suspect_s=5.0, lost_worker_s=60.0), clock)


def test_a_live_holder_keeps_its_index(roster, clock):
    roster.take(registration())
    clock.now = 1.0
    with pytest.raises(IndexTaken, match="ps-0 is held by a live process at host:one"):
        roster.take(registration(incarnation="two"))


def test_a_silent_or_lost_holder_is_replaced(roster, clock):
    seat = roster.take(registration())
    seat.load = PsReport(is_ready=True)
    clock.now = 4.0
    assert roster.take(registration(incarnation="two")).address == "host:two"
    assert not seat.load.is_ready
    seat.is_connected = False
    clock.now = 4.1
    assert roster.take(registration(incarnation="three")).address == "host:three"


def test_silence_is_measured_in_the_holder_s_own_heartbeats(roster, clock):
    roster.take(registration(heartbeat_s=5.0))
    clock.now = 14.0
    with pytest.raises(IndexTaken):
        roster.take(registration(incarnation="two"))
    clock.now = 16.0
    assert roster.take(registration(incarnation="two")).address == "host:two"


def test_the_same_process_may_come_back_at_once(roster, clock):
    seat = roster.take(registration())
    seat.load = PsReport(is_ready=True)
    clock.now = 0.1
    roster.take(registration())
    assert seat.load.is_ready


@pytest.mark.parametrize(
    ("role", "index", "way_out"), [(Role.PS, 2, "--num-ps=3"), (Role.WORKER, 5, "--num-workers=6")]
)
def test_an_index_outside_the_cluster_is_refused_with_the_way_out(roster, role, index, way_out):
    with pytest.raises(NotInCluster, match=f"{role} index {index} .*{way_out}"):
        roster.take(registration(role, index))


def test_another_number_of_ps_is_refused(roster):
    with pytest.raises(NotInCluster, match="expects 3 ps, this cluster has 2"):
        roster.take(registration(num_ps=3))
    roster.take(registration(num_ps=2))


def test_a_ps_is_missing_until_it_is_restored_and_again_once_it_counts_as_dead(roster, clock):
    first = roster.take(registration(index=0))
    assert roster.missing_ps() == [0, 1]
    first.load = PsReport(is_ready=True)
    assert roster.missing_ps() == [1]
    first.is_connected, clock.now = False, 5.0
    assert roster.missing_ps() == [1]
    clock.now = 5.1
    assert roster.missing_ps() == [0, 1]


def test_a_worker_is_done_when_it_says_so_or_has_been_lost_for_long(roster, clock):
    assert not roster.are_workers_done()
    worker = roster.take(registration(Role.WORKER))
    worker.progress = WorkerReport(is_finished=True)
    assert (roster.finished_workers(), roster.are_workers_done()) == ((0,), True)
    worker.progress, worker.is_connected, clock.now = WorkerReport(), False, 60.0
    assert (roster.finished_workers(), roster.are_workers_done()) == ((), False)
    clock.now = 60.1
    assert (roster.finished_workers(), roster.are_workers_done()) == ((0,), True)


def test_a_cluster_without_workers_is_never_done_by_itself():
    assert not Roster(
        1, 0, Patience(silence_s=1.0, suspect_s=1.0, lost_worker_s=1.0)
    ).are_workers_done()


def test_time_that_is_forgiven_is_no_silence(roster, clock):
    seat = roster.take(registration(index=1))
    clock.now = 10.1
    assert seat in roster.silent()
    roster.forgive(1.0)
    assert (seat in roster.silent(), roster.unheard_s(seat)) == (False, pytest.approx(9.1))
    roster.forgive(60.0)
    assert roster.unheard_s(seat) == 0.0, "nobody is heard in the future"
