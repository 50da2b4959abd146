import pytest

from megalith.appmaster.job import FinalOutcome, FinalStatus, Job
from megalith.errors import ApplicationEnded, BarrierAlreadyPlaced, InvalidRequest, PeerUnreachable

KILLED, DONE = FinalOutcome(False, "out of memory", 3), FinalOutcome(True, "all done")


class FakeController:
    def __init__(self):
        self.calls = []
        self.error = None

    def stop(self, *, reason, holder):
        self.calls.append(("stop", holder))
        if self.calls.count(("stop", holder)) > 1:
            raise BarrierAlreadyPlaced("Barrier is placed already.")

    def resume(self, holder):
        self.calls.append(("resume", holder))

    def end_job(self, succeeded, reason, *, at_once):
        assert at_once
        if self.error:
            raise self.error
        self.calls.append((succeeded, reason))


@pytest.fixture
def controller():
    return FakeController()


@pytest.fixture
def kept():
    return []


@pytest.fixture
def make_job(controller, kept):
    return lambda can_force=False, before=None: Job(
        "app", controller, lambda: can_force, before or {}, kept.append
    )


def test_the_first_end_decides_and_reaches_the_controller_once(make_job, controller, kept):
    job = make_job()
    job.end(KILLED)
    job.end(FinalOutcome(False, "again"))
    assert (job.final_status, job.ending) == (FinalStatus.FAILED, KILLED)
    assert controller.calls == [(False, "killed: out of memory")]
    assert kept == [{"succeeded": False, "reason": "out of memory", "exit_code": 3, "grace_s": 0.0}]


def test_an_end_that_the_controller_tells_of_before_it_answers_is_the_one_that_was_asked_for(
    make_job, controller
):
    job = make_job()
    controller.end_job = lambda *arguments, **settings: job.ended(
        FinalOutcome(False, "killed: so", 0)
    )
    job.end(KILLED)
    assert job.ending == KILLED


@pytest.mark.parametrize("error", [PeerUnreachable("nobody"), InvalidRequest("not so")])
def test_an_end_that_was_asked_for_in_vain_says_nothing_about_a_later_one(
    make_job, controller, error
):
    job = make_job()
    controller.error = error
    with pytest.raises(type(error)):
        job.end(KILLED)
    failed = FinalOutcome(False, "the task raised", 1)
    job.ended(failed)
    assert job.ending == failed


def test_a_contradicting_end_is_refused_and_says_how_it_ended(make_job, controller):
    job = make_job()
    job.end(DONE)
    with pytest.raises(ApplicationEnded, match="app has ended: SUCCEEDED, all done"):
        job.end(KILLED)
    assert job.ending == DONE
    assert controller.calls == [(True, "all done")]


def test_a_job_that_ended_by_itself_can_not_be_killed(make_job, controller):
    job = make_job()
    job.ended(DONE)
    with pytest.raises(ApplicationEnded):
        job.end(KILLED)
    job.end(DONE)
    assert controller.calls == []


def test_an_end_that_did_not_reach_the_controller_may_be_tried_again(make_job, controller):
    job = make_job()
    controller.error = PeerUnreachable("gone")
    with pytest.raises(PeerUnreachable):
        job.end(KILLED)
    assert job.final_status is FinalStatus.UNDEFINED
    controller.error = None
    job.end(KILLED)
    assert job.final_status is FinalStatus.FAILED


def test_a_supervised_job_ends_without_its_controller(make_job, controller):
    job = make_job(can_force=True)
    controller.error = PeerUnreachable("gone")
    job.end(KILLED)
    assert job.ending == KILLED


def test_a_negative_grace_is_refused_and_nothing_ends(make_job, controller):
    job = make_job()
    with pytest.raises(InvalidRequest, match="graceful_shutdown_timeout_ms=-5: below 0"):
        job.end(FinalOutcome(False, "enough", grace_s=-0.005))
    assert job.ending is None
    assert controller.calls == []


def test_a_restarted_appmaster_knows_how_the_job_ended(make_job, kept):
    make_job().end(KILLED)
    assert make_job(before=kept[-1]).ending == KILLED


def test_suspend_twice_is_one_pause(make_job, controller):
    job = make_job()
    job.suspend()
    job.suspend()
    job.resume()
    assert controller.calls == [("stop", "platform"), ("stop", "platform"), ("resume", "platform")]
