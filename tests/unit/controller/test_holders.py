"""Several hold training at once: each lets go of its own hold, and nobody of another's."""

import random
import threading

import pytest

from megalith.controller.coordinator import Coordinator
from megalith.controller.members.barrier import HolderKind
from megalith.controller.members.directives import ClusterState
from megalith.controller.members.roster import Patience, Registration, Role
from megalith.errors import BarrierAlreadyPlaced, InvalidRequest
from megalith.wire.reports import PsReport, WorkerReport
from support.waiting import wait_until

RESUME_S = 60.0
PATIENCE = Patience(silence_s=1e6, suspect_s=1e6, lost_worker_s=1e6, health_resume_s=RESUME_S)
ILL = PsReport(is_ready=True, complaint="Memory limit exceeded. Current: 9, Limit: 8")
WELL = PsReport(is_ready=True)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cluster(clock):
    return Coordinator(2, 0, patience=PATIENCE, clock=clock)


@pytest.fixture
def servers(cluster):
    """The sessions of two ps that are well."""
    sessions = [
        cluster.join(
            Registration(Role.PS, index, f"ps-{index}:1", incarnation=f"{index}"), lambda told: None
        )
        for index in range(2)
    ]
    for session in sessions:
        cluster.report_ps(session, WELL)
    return sessions


def holders(cluster):
    return [holder.kind.value for holder in cluster.state().barrier.holders]


def hold_for_a_save(cluster):
    return cluster.hold("Save", "save", 0.0)


def test_a_complaint_during_a_save_holds_training_after_the_save(cluster, servers):
    let_go = hold_for_a_save(cluster)
    cluster.report_ps(servers[1], ILL)
    assert holders(cluster) == ["save", "health"]
    let_go()
    assert holders(cluster) == ["health"]
    assert cluster.state().barrier.reason == "ps-1: Memory limit exceeded. Current: 9, Limit: 8"


def test_a_suspend_during_a_save_holds_training_after_the_save(cluster):
    let_go = hold_for_a_save(cluster)
    cluster.place_barrier(reason="the platform wants its machines", kind=HolderKind.PLATFORM)
    let_go()
    assert holders(cluster) == ["platform"]
    cluster.remove_barrier()
    assert holders(cluster) == ["platform"]  # an operator does not undo what the platform was told
    cluster.remove_barrier(HolderKind.PLATFORM)
    assert holders(cluster) == []


def test_a_stop_during_a_save_is_taken_and_outlives_the_save(cluster):
    let_go = hold_for_a_save(cluster)
    cluster.place_barrier(reason="look at data")
    with pytest.raises(BarrierAlreadyPlaced, match=r"^Barrier is placed already\.$"):
        cluster.place_barrier()
    assert holders(cluster) == ["save", "operator"]
    let_go()
    assert holders(cluster) == ["operator"]


def test_a_resume_during_a_save_releases_no_worker(cluster):
    cluster.place_barrier()
    let_go = hold_for_a_save(cluster)
    cluster.remove_barrier()
    assert holders(cluster) == ["save"]
    let_go()
    assert not cluster.state().barrier.is_placed


def test_of_two_saves_that_hold_each_ends_its_own_hold(cluster):
    first = hold_for_a_save(cluster)
    second = hold_for_a_save(cluster)
    first()
    assert holders(cluster) == ["save"]
    first()  # twice is once
    assert holders(cluster) == ["save"]
    second()
    assert holders(cluster) == []


def test_a_hold_that_was_lifted_and_placed_again_is_not_ended_by_the_old_one(cluster):
    let_go = cluster.hold("Stop", "monolith_action", 0.0, HolderKind.OPERATOR)
    cluster.remove_barrier()
    cluster.place_barrier(reason="another one")
    let_go()
    assert cluster.state().barrier.reason == "another one"


def test_a_save_is_one_moment_a_worker_counts_as_blocked_once_it_has_heard_of_this_hold(clock):
    cluster = Coordinator(1, 1, patience=PATIENCE, clock=clock)
    told = []
    worker = cluster.join(Registration(Role.WORKER, 0, "w:1", incarnation="w"), told.append)
    cluster.place_barrier()
    cluster.report_worker(worker, WorkerReport(is_blocked=True, barrier_id=1))
    held = []
    saving = threading.Thread(target=lambda: held.append(cluster.hold("Save", "save", 30.0)))
    saving.start()
    wait_until(lambda: holders(cluster) == ["operator", "save"])
    cluster.remove_barrier()  # by an operator, before the worker has heard of the save
    state = [item for item in told if isinstance(item, ClusterState)][-1]
    assert state.barrier.is_placed
    assert not held
    cluster.report_worker(worker, WorkerReport(is_blocked=True, barrier_id=2))
    saving.join(30)
    held[0]()
    assert not cluster.state().barrier.is_placed


def test_a_resume_runs_above_the_memory_limit_for_a_while_and_no_longer(
    cluster, servers, clock, caplog
):
    cluster.report_ps(servers[1], ILL)
    cluster.remove_barrier()
    clock.now += RESUME_S - 1
    cluster.report_ps(servers[1], ILL)
    assert holders(cluster) == []
    clock.now += 1
    cluster.report_ps(servers[1], ILL)
    assert holders(cluster) == ["health"]
    assert caplog.text.count("PS are not healthy:") == 1
    assert caplog.text.count("training is held") == 2


def test_after_a_resume_a_complaint_of_another_ps_holds_at_once(cluster, servers):
    cluster.report_ps(servers[1], ILL)
    cluster.remove_barrier()
    cluster.report_ps(servers[0], ILL)
    assert holders(cluster) == ["health"]


def test_a_ps_that_crosses_its_limit_anew_holds_at_once(cluster, servers):
    cluster.report_ps(servers[1], ILL)
    cluster.remove_barrier()
    cluster.report_ps(servers[1], WELL)
    cluster.report_ps(servers[1], ILL)
    assert holders(cluster) == ["health"]


def test_the_next_controller_keeps_every_holder_but_the_save_that_died(cluster, servers, clock):
    cluster.place_barrier("Stop", "look at data")
    hold_for_a_save(cluster)
    cluster.place_barrier(kind=HolderKind.PLATFORM)
    cluster.report_ps(servers[0], ILL)
    assert holders(cluster) == ["operator", "save", "platform", "health"]
    successor = Coordinator(2, 0, patience=PATIENCE, clock=clock, journal=cluster.journal())
    successor.join(Registration(Role.PS, 0, "ps-0:1", incarnation="0"), lambda told: None)
    state = successor.state().barrier
    assert [(holder.kind.value, holder.action) for holder in state.holders] == [
        ("operator", "Stop"),
        ("platform", ""),
        ("health", ""),
    ]
    assert state.id == 4


def test_an_endless_reason_is_refused_and_nothing_is_placed(cluster):
    with pytest.raises(InvalidRequest, match="at most 1024 characters"):
        cluster.place_barrier(reason="x" * 1025)
    assert holders(cluster) == []


def test_whoever_hammers_it_nobody_is_left_holding_and_no_save_is_ever_open(cluster, servers):
    moments_without_hold = []

    def save():
        for _ in range(200):
            let_go = hold_for_a_save(cluster)
            if not cluster.state().barrier.is_placed:
                moments_without_hold.append("save")
            let_go()

    def stop_and_resume(kind):
        chance = random.Random(kind.value)
        for _ in range(200):
            if chance.random() < 0.5:
                try:
                    cluster.place_barrier(kind=kind)
                except BarrierAlreadyPlaced:
                    continue
            else:
                cluster.remove_barrier(kind)
        cluster.remove_barrier(kind)

    def complain(session):
        for _ in range(100):
            cluster.report_ps(session, ILL)
            cluster.report_ps(session, WELL)

    threads = [
        *(threading.Thread(target=save) for _ in range(3)),
        *(
            threading.Thread(target=stop_and_resume, args=(kind,))
            for kind in (HolderKind.OPERATOR, HolderKind.PLATFORM)
        ),
        *(threading.Thread(target=complain, args=(session,)) for session in servers),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    cluster.remove_barrier()
    assert cluster.state().barrier.holders == ()
    assert moments_without_hold == []
