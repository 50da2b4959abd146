"""Who gets pieces of the input: workers with a seat, and others once they are lost."""

import pytest

from megalith.controller.coordinator import Coordinator
from megalith.controller.members.roster import Patience, Registration, Role
from megalith.errors import InvalidRequest, NotInCluster, NotReady
from megalith.runtime.joining.lease import LEASE_MARGIN_S, LEASE_S
from megalith.wire.pieces import PiecePlan, PieceProgress, PieceRequest
from megalith.wire.reports import PsReport, WorkerReport

PATIENCE = Patience(silence_s=10.0, suspect_s=5.0, lost_worker_s=600.0)
PLAN = PiecePlan("blocks", 4)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def made(clock, **settings):
    return Coordinator(1, 2, patience=PATIENCE, clock=clock, **settings)


def join(cluster, index, incarnation, role=Role.WORKER):
    registration = Registration(
        role, index, f"{incarnation}:1", incarnation=incarnation, has_lease=True
    )
    return cluster.join(registration, lambda told: None)


def ask(cluster, index, incarnation, most=1, progress=()):
    request = PieceRequest(index, incarnation, PLAN, tuple(progress), most)
    return [piece.number for piece in cluster.take_pieces(request).pieces]


@pytest.fixture
def cluster(clock):
    cluster = made(clock)
    cluster.report_ps(join(cluster, 0, "ps", Role.PS), PsReport(is_ready=True))
    return cluster


def test_only_the_process_that_holds_the_seat_gets_pieces(cluster):
    session = join(cluster, 0, "a")
    assert ask(cluster, 0, "a") == [0]
    for index, incarnation in ((0, "stranger"), (7, "a")):
        with pytest.raises(NotInCluster):
            ask(cluster, index, incarnation)

    with pytest.raises(NotReady):
        ask(cluster, 1, "b")  # of a controller that has lost its journal, until the session is back
    cluster.leave(session)
    with pytest.raises(NotReady):
        ask(cluster, 0, "a")


def test_pieces_of_a_dead_worker_wait_until_no_server_takes_its_pushes(cluster, clock):
    session = join(cluster, 0, "a")
    join(cluster, 1, "b")
    assert ask(cluster, 0, "a", 3) == [0, 1, 2]
    cluster.leave(session)
    clock.now += 4.9
    assert ask(cluster, 1, "b", 2) == [3]
    clock.now += 0.2
    assert ask(cluster, 1, "b", 2, [PieceProgress(3)]) == [0, 1]


def test_pieces_of_a_worker_whose_share_ended_early_go_to_others_while_it_stays(cluster):
    """A hook asked for the end; the chief stays to save and evaluate, and waits for the others."""
    session = join(cluster, 0, "a")
    join(cluster, 1, "b")
    assert ask(cluster, 0, "a", 3) == [0, 1, 2]
    held = (PieceProgress(0, 1, is_done=True), PieceProgress(1, 7), PieceProgress(2))
    cluster.report_worker(session, WorkerReport(pieces=held, is_share_over=True))
    request = PieceRequest(1, "b", PLAN, (), 4)
    given = cluster.take_pieces(request).pieces
    assert [(piece.number, piece.offset) for piece in given] == [(1, 7), (2, 0), (3, 0)]


def test_pieces_of_a_replaced_worker_wait_for_its_lease_alone(cluster, clock):
    session = join(cluster, 0, "a")
    assert ask(cluster, 0, "a", 2) == [0, 1]
    cluster.leave(session)
    clock.now += 1.0
    join(cluster, 0, "b")
    assert ask(cluster, 0, "b") == [2]
    clock.now += LEASE_S + LEASE_MARGIN_S
    assert ask(cluster, 0, "b", 2, [PieceProgress(2)]) == [0, 1]


def test_reports_say_how_far_pieces_are(cluster, clock):
    session = join(cluster, 0, "a")
    ask(cluster, 0, "a", 2)
    progress = (PieceProgress(0, 10, is_done=True), PieceProgress(1, 7))
    cluster.report_worker(session, WorkerReport(has_begun=True, pieces=progress))
    assert cluster.piece_counts().done == 1
    assert b"[1, 7, " in cluster.cursors()[0]


def test_what_is_handed_out_is_on_disk_before_the_worker_knows(clock):
    flushed = []
    cluster = made(clock, flush_journal=lambda: flushed.append(cluster.journal().pieces))
    join(cluster, 0, "a")
    ask(cluster, 0, "a", 2)
    assert '"next": 2' in flushed[-1]
    count = len(flushed)
    ask(cluster, 0, "a", 0, [PieceProgress(0, 3), PieceProgress(1)])
    assert len(flushed) == count, "an offset is said again"


def test_the_next_controller_forgets_no_piece(cluster, clock):
    join(cluster, 0, "a")
    ask(cluster, 0, "a", 2)
    left = cluster.journal()
    left.check()

    following = made(clock, journal=left)
    with pytest.raises(NotReady):
        ask(following, 0, "a", 1)
    join(following, 0, "a")
    assert ask(following, 0, "a", 5) == [0, 1], "it may not have had the answer"
    join(following, 1, "b")
    assert ask(following, 1, "b", 5) == [2, 3]


def test_a_checkpoint_goes_on_with_another_number_of_workers(cluster, clock):
    join(cluster, 0, "a")
    ask(cluster, 0, "a", 2)
    ask(cluster, 0, "a", 0, [PieceProgress(0, 10, is_done=True), PieceProgress(1, 4)])
    again = Coordinator(1, 3, patience=PATIENCE, clock=clock, first_cursors=cluster.cursors())
    assert again.cursors() == cluster.cursors(), "also if nobody has asked yet"
    join(again, 2, "c")
    assert ask(again, 2, "c", 5) == [1, 2, 3]


def test_cursors_of_shares_say_nothing_of_pieces(clock):
    cluster = made(clock, first_cursors=(b"numbered batches=3", b""))
    join(cluster, 0, "a")
    with pytest.raises(InvalidRequest, match="--sharding static"):
        ask(cluster, 0, "a")


def test_a_dead_worker_is_not_waited_for_once_others_have_trained_everything(cluster, clock):
    join(cluster, 0, "chief")
    session = join(cluster, 1, "b")
    assert ask(cluster, 1, "b") == [0]
    cluster.leave(session)
    clock.now += 6.0
    cluster.watch()
    assert cluster.state().finished_workers == ()
    taken = ask(cluster, 0, "chief", 9)
    assert taken == [0, 1, 2, 3]
    ask(cluster, 0, "chief", 0, [PieceProgress(n, 1, is_done=True) for n in taken])
    assert cluster.state().finished_workers == (1,)
    assert cluster.untrained_shares() == []
    clock.now += 1000.0
    cluster.watch()
    assert cluster.losses() == (0, ())


def test_a_new_run_begins_with_the_pieces_of_the_checkpoint(cluster, clock):
    join(cluster, 0, "a")
    ask(cluster, 0, "a", 2)
    following = made(clock, journal=cluster.journal())
    clock.now += 100.0
    following.watch()
    join(following, 0, "new")
    assert ask(following, 0, "new", 5) == [0, 1, 2, 3]
