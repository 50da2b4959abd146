"""Between two steps: the barrier, its callbacks, and the start and end of a job (golden G19)."""

import logging
import threading

import pytest

from megalith.worker.duties.chief import wait_for_others
from megalith.worker.session.progress import Progress
from megalith.worker.session.view import BarrierHolds, ClusterPhase, ClusterView, KnownState
from megalith.worker.steps.gate import Gate
from support.waiting import wait_until

RUNNING = KnownState(phase=ClusterPhase.RUNNING)


class Worker:
    """A training thread that only counts its steps, one per call of `allow`."""

    def __init__(self, view, *callbacks):
        self.view, self.progress = view, Progress()
        self.drained, self.steps, self.is_over = 0, 0, False
        self.is_drained = True
        self.gate = Gate(view, self.progress, lambda: None, self.drain, callbacks)
        self.turns, self.is_in_step = threading.Semaphore(0), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def drain(self):
        assert not self.progress.snapshot().is_blocked
        self.drained += 1
        return self.is_drained

    def run(self):
        while self.gate.may_step():
            self.is_in_step.set()
            self.turns.acquire()
            self.steps += 1
        self.is_over = True

    def allow(self, steps):
        for _ in range(steps):
            self.turns.release()

    @property
    def blocked_at(self):
        now = self.progress.snapshot()
        return now.barrier_id if now.is_blocked else 0


@pytest.fixture
def view():
    view = ClusterView()
    yield view
    view.stop()


@pytest.fixture
def start_worker(view):
    """Start a worker with the given callbacks; it ends with the test, also in the midst of a
    step."""
    started = []

    def start(*callbacks):
        worker = Worker(view, *callbacks)
        started.append(worker)
        return worker

    yield start
    view.stop()
    for worker in started:
        worker.allow(1)
        worker.thread.join(30)
        assert worker.is_over


def placed(number, action=""):
    return KnownState(
        phase=ClusterPhase.RUNNING, barrier=BarrierHolds(number, True, ((number, action),))
    )


def removed(number):
    return KnownState(phase=ClusterPhase.RUNNING, barrier=BarrierHolds(number, False))


@pytest.mark.golden("Extra.barrier")
def test_a_worker_finishes_its_step_then_blocks_and_goes_on_after_removal(start_worker, view):
    """Extra of the goldens: exactly one step before blocking, the callback sees the action, then 5
    steps."""
    seen = []
    worker = start_worker(seen.append)
    view.update(RUNNING)
    assert worker.is_in_step.wait(30)
    view.update(placed(1, "Save"))
    worker.allow(1)  # the step that it was in
    wait_until(lambda: worker.blocked_at == 1)
    assert (worker.steps, seen, worker.drained) == (1, ["Save"], 1)
    view.update(removed(1))
    worker.allow(5)
    wait_until(lambda: worker.steps == 6)
    assert seen == ["Save"]


def test_callbacks_run_once_per_barrier_however_often_its_state_arrives(start_worker, view):
    seen = []
    worker = start_worker(seen.append)
    view.update(placed(1))
    wait_until(lambda: worker.blocked_at == 1)
    view.update(KnownState(phase=ClusterPhase.WAITING, barrier=BarrierHolds(1, True, ((1, ""),))))
    view.update(placed(1))
    assert worker.blocked_at == 1
    assert seen == [""]


def test_a_quick_remove_and_place_is_another_barrier(start_worker, view):
    seen = []
    worker = start_worker(seen.append)
    view.update(placed(1, "Save"))
    wait_until(lambda: worker.blocked_at == 1)
    view.update(placed(2, "Dance"))
    wait_until(lambda: worker.blocked_at == 2)
    assert seen == ["Save", "Dance"]
    assert worker.steps == 0


def test_a_worker_hears_the_action_of_every_holder_once_and_stays_blocked_while_one_is_left(
    start_worker, view
):
    seen = []
    worker = start_worker(seen.append)

    def held_by(number, *actions):
        return KnownState(phase=ClusterPhase.RUNNING, barrier=BarrierHolds(number, True, actions))

    view.update(held_by(1, (1, "")))
    wait_until(lambda: worker.blocked_at == 1)
    view.update(held_by(2, (1, ""), (2, "Save")))
    wait_until(lambda: worker.blocked_at == 2)
    view.update(held_by(2, (1, "")))
    view.update(held_by(3, (1, ""), (3, "Dance")))
    wait_until(lambda: worker.blocked_at == 3)
    view.update(held_by(3, (3, "Dance")))
    assert (seen, worker.steps, worker.drained) == (["", "Save", "Dance"], 0, 1)
    view.update(removed(3))
    worker.allow(1)
    wait_until(lambda: worker.steps == 1)
    assert worker.blocked_at == 0


def test_a_callback_that_fails_is_logged_and_the_others_are_called(start_worker, view, caplog):
    seen = []

    def fail(action):
        raise RuntimeError(f"cannot {action}")

    with caplog.at_level(logging.ERROR):
        worker = start_worker(fail, seen.append)
        view.update(placed(1, "Save"))
        wait_until(lambda: worker.blocked_at == 1)
    assert seen == ["Save"]
    assert "cannot Save" in caplog.text


def test_the_action_stop_ends_the_share_once_the_barrier_is_removed(start_worker, view):
    worker = start_worker()
    view.update(placed(1, "Stop"))
    wait_until(lambda: worker.blocked_at == 1)
    assert not worker.is_over
    view.update(removed(1))
    worker.thread.join(30)
    assert worker.is_over
    assert worker.steps == 0


class CountedWaits(threading.Condition):
    """Counts how often somebody began to wait: a thread that was woken up in vain waits again."""

    count = 0

    def wait(self, timeout=None):
        self.count += 1
        return super().wait(timeout)


@pytest.mark.golden("G19")
def test_a_worker_blocks_until_the_chief_has_restored(start_worker, view):
    waits = view._changed = CountedWaits()
    worker = start_worker()
    worker.allow(3)
    wait_until(lambda: waits.count, what="it is in the gate")
    for phase in (ClusterPhase.WAITING, ClusterPhase.INITIALIZING):
        before = waits.count
        view.update(KnownState(phase=phase))
        wait_until(lambda: waits.count > before, what=f"it looked at {phase}")  # noqa: B023
        assert worker.steps == 0
        assert not worker.is_in_step.is_set()
    view.update(RUNNING)
    wait_until(lambda: worker.steps == 3)


def chief_waits(view, **settings):
    """The chief's end on a thread: (thread, what it returned)."""
    answer = []
    gate = Gate(view, Progress(), lambda: None, lambda: None)
    thread = threading.Thread(
        target=lambda: answer.append(wait_for_others(gate, view, **settings)), daemon=True
    )
    thread.start()
    return thread, answer


@pytest.mark.golden("G19")
def test_the_chief_blocks_at_the_end_until_the_workers_finish(view, caplog):
    view.update(RUNNING)
    with caplog.at_level(logging.INFO):
        thread, answer = chief_waits(view, num_workers=3, timeout_s=60.0)
        view.update(KnownState(phase=ClusterPhase.RUNNING, finished_workers=frozenset({2})))
        thread.join(0.05)
        assert thread.is_alive()
        view.update(KnownState(phase=ClusterPhase.RUNNING, finished_workers=frozenset({1, 2})))
        thread.join(30)
    assert answer == [True]
    assert "All other workers had been finished." in caplog.text


@pytest.mark.golden("G19")
def test_a_chief_alone_waits_for_nobody(view):
    view.update(RUNNING)
    thread, answer = chief_waits(view, num_workers=1, timeout_s=60.0)
    thread.join(30)
    assert answer == [True]


def test_the_chief_does_not_wait_for_ever(view, caplog):
    view.update(KnownState(phase=ClusterPhase.RUNNING, finished_workers=frozenset({1})))
    thread, answer = chief_waits(view, num_workers=4, timeout_s=0.05, log_every_s=0.01)
    thread.join(30)
    assert answer == [True]
    assert "Reach timeout seconds! Remaining worker count: 2." in caplog.text


def test_a_chief_that_is_told_to_stop_leaves_its_wait(view):
    thread, answer = chief_waits(view, num_workers=2, timeout_s=60.0)
    view.stop()
    thread.join(30)
    assert answer == [False]


def test_a_worker_that_stops_before_its_pushes_are_known_never_says_that_it_is_blocked(
    start_worker, view
):
    worker = start_worker()
    worker.is_drained = False
    worker.turns.release()
    view.update(placed(1))
    wait_until(lambda: worker.drained > 0)
    view.stop()
    worker.thread.join(30)
    assert (worker.is_over, worker.blocked_at) == (True, 0)


def test_a_hold_of_a_controller_that_lost_its_journal_is_heard_though_its_number_is_lower(
    start_worker, view
):
    heard = []
    worker = start_worker(heard.append)
    view.update(placed(3, "Save"))
    wait_until(lambda: worker.blocked_at == 3)
    view.update(RUNNING)
    wait_until(worker.is_in_step.is_set)
    view.update(placed(1, "Stop"))
    worker.allow(1)
    wait_until(lambda: worker.blocked_at == 1)
    view.update(RUNNING)
    wait_until(lambda: worker.is_over)
    assert heard == ["Save", "Stop"]


def test_a_stop_is_heard_though_the_numbers_began_again_during_one_step(start_worker, view):
    heard = []
    worker = start_worker(heard.append)
    view.update(placed(1, "Save"))
    wait_until(lambda: worker.blocked_at == 1)
    view.update(removed(1))
    assert worker.is_in_step.wait(30)
    view.update(removed(0))  # a controller without the journal; the worker is still in its step
    view.update(placed(1, "Stop"))
    worker.allow(1)
    wait_until(lambda: worker.blocked_at == 1)
    view.update(removed(1))
    worker.thread.join(30)
    assert (worker.is_over, worker.steps, heard) == (True, 1, ["Save", "Stop"])


def test_a_stop_is_heard_though_it_has_the_number_of_a_hold_that_has_ended(start_worker, view):
    """The controller without the journal holds training before this worker is back in its
    session."""
    heard = []
    worker = start_worker(heard.append)
    view.update(placed(1, "Save"))
    wait_until(lambda: worker.blocked_at == 1)
    view.update(removed(1))
    assert worker.is_in_step.wait(30)
    view.update(placed(1, "Stop"))
    worker.allow(1)
    wait_until(lambda: worker.blocked_at == 1)
    view.update(removed(1))
    worker.thread.join(30)
    assert (worker.is_over, worker.steps, heard) == (True, 1, ["Save", "Stop"])
