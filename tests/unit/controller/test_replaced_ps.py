"""A ps that comes back after another process had its index."""

import pytest

from megalith.controller.coordinator import Coordinator
from megalith.controller.members.roster import Patience, Registration, Role
from megalith.errors import IndexTaken, NotInCluster, NotReady
from megalith.wire.reports import PsReport

PATIENCE = Patience(silence_s=10.0, suspect_s=5.0, lost_worker_s=60.0)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def coordinator(clock, left=None):
    return Coordinator(1, 0, patience=PATIENCE, journal=left, clock=clock)


def join(cluster, incarnation, **changes):
    registration = Registration(
        Role.PS, 0, f"{incarnation}:1", incarnation=incarnation, has_lease=True, **changes
    )
    return cluster.join(registration, lambda directive: None)


def come_back(cluster, incarnation, epoch):
    return join(cluster, incarnation, epoch=epoch, held_shard=0, run_id=cluster.run_id)


def be_lost(cluster, clock, session):
    """Its session breaks, and its lease and the patience with it are over."""
    cluster.leave(session)
    clock.now += 6.0
    cluster.watch()


def routed(cluster, clock, incarnation):
    """A new process holds the index and is in the map."""
    session = join(cluster, incarnation)
    cluster.report_ps(session, PsReport(is_ready=True))
    clock.now += 4.0
    cluster.watch()
    assert cluster.current_routing().addresses == (f"{incarnation}:1",)
    return session


def test_a_ps_is_refused_once_another_process_was_in_the_map_for_it(clock):
    cluster = coordinator(clock)
    be_lost(cluster, clock, routed(cluster, clock, "a"))
    be_lost(cluster, clock, routed(cluster, clock, "b"))
    with pytest.raises(NotInCluster, match="was replaced"):
        come_back(cluster, "a", epoch=1)
    come_back(cluster, "b", epoch=2)


def test_a_ps_whose_replacement_never_was_in_the_map_comes_back_with_its_rows(clock):
    cluster = coordinator(clock)
    be_lost(cluster, clock, routed(cluster, clock, "a"))
    be_lost(cluster, clock, join(cluster, "b"))
    cluster.report_ps(come_back(cluster, "a", epoch=1), PsReport(is_ready=True))
    clock.now += 4.0
    cluster.watch()
    assert cluster.current_routing().epoch == 1


def test_a_restarted_controller_refuses_the_ps_that_was_replaced(clock):
    cluster = coordinator(clock)
    be_lost(cluster, clock, routed(cluster, clock, "a"))
    routed(cluster, clock, "b")
    after = coordinator(clock, cluster.journal())
    with pytest.raises(NotInCluster, match="was replaced"):
        come_back(after, "a", epoch=1)
    come_back(after, "b", epoch=2)


def test_a_restarted_controller_refuses_it_also_while_the_next_replacement_restores(clock):
    cluster = coordinator(clock)
    be_lost(cluster, clock, routed(cluster, clock, "a"))
    be_lost(cluster, clock, routed(cluster, clock, "b"))
    join(cluster, "c")
    after = coordinator(clock, cluster.journal())
    with pytest.raises(NotInCluster, match="was replaced"):
        come_back(after, "a", epoch=1)


def test_a_ps_that_has_seen_a_newer_map_than_the_journal_is_believed(clock):
    cluster = coordinator(clock)
    be_lost(cluster, clock, routed(cluster, clock, "a"))
    behind = cluster.journal()
    routed(cluster, clock, "b")
    after = coordinator(clock, behind)
    come_back(after, "b", epoch=2)


def test_a_replacement_that_no_map_names_yet_comes_back_to_a_restarted_controller(clock):
    cluster = coordinator(clock)
    be_lost(cluster, clock, routed(cluster, clock, "a"))
    join(cluster, "b")  # it restores when the controller dies
    after = coordinator(clock, cluster.journal())
    session = come_back(after, "b", epoch=0)
    after.report_ps(session, PsReport(is_ready=True))
    clock.now += 4.0
    after.watch()
    assert after.current_routing().addresses == ("b:1",)


def test_a_restarted_controller_waits_for_the_lease_of_who_was_replaced_just_before(clock):
    cluster = coordinator(clock)
    cluster.leave(routed(cluster, clock, "a"))  # cut off from the controller, it serves on
    join(cluster, "b")
    after = coordinator(clock, cluster.journal())
    after.report_ps(come_back(after, "b", epoch=0), PsReport(is_ready=True))
    clock.now += 3.4
    after.watch()
    with pytest.raises(NotReady):
        after.current_routing()
    clock.now += 0.2
    after.watch()
    assert after.current_routing().addresses == ("b:1",)


def test_a_restarted_controller_knows_that_a_run_has_trained_while_a_ps_is_replaced(clock):
    cluster = coordinator(clock)
    assert not cluster.has_trained
    be_lost(cluster, clock, routed(cluster, clock, "a"))
    join(cluster, "b")  # it restores when the controller dies
    after = coordinator(clock, cluster.journal())
    come_back(after, "b", epoch=0)
    assert after.has_trained


def test_a_controller_that_was_stopped_gives_nobody_away_who_was_silent_only_meanwhile(clock):
    cluster = coordinator(clock)
    cluster.report_ps(routed(cluster, clock, "a"), PsReport(is_ready=True))
    clock.now += 20.0  # nobody looks
    with pytest.raises(IndexTaken):
        join(cluster, "b")
    assert cluster.current_routing().addresses == ("a:1",)
    for _ in range(20):
        clock.now += 1.0
        cluster.watch()
    join(cluster, "b")


def test_what_the_only_ps_has_dropped_is_known_after_it_was_replaced(clock):
    """Its replacement would restore the table."""
    cluster = coordinator(clock)
    session = routed(cluster, clock, "a")
    cluster.report_ps(session, PsReport(is_ready=True, dropped_tables={"old": 5.0}))
    be_lost(cluster, clock, session)
    cluster.report_ps(join(cluster, "b"), PsReport())
    assert cluster.dropped_tables() == {"old": 5.0}
