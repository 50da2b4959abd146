import pytest

from megalith.appmaster.job import FinalStatus, Job, SavepointState
from megalith.wire.errors import BarrierAlreadyPlaced, NotFound, SaveFailed


class FakeController:
    def __init__(self):
        self.calls = []
        self.error = None

    def stop(self):
        self.calls.append("stop")
        if self.calls.count("stop") > 1:
            raise BarrierAlreadyPlaced("Barrier is placed already.")

    def resume(self):
        self.calls.append("resume")

    def save(self, directory=""):
        if self.error:
            raise self.error
        return type("Saved", (), {"path": f"{directory}/model.ckpt-1"})

    def end_job(self, succeeded, reason):
        self.calls.append((succeeded, reason))


@pytest.fixture
def controller():
    return FakeController()


@pytest.fixture
def started():
    return []


@pytest.fixture
def job(controller, started):
    return Job("app", controller, started.append)


def test_the_first_end_decides_and_reaches_the_controller_once(job, controller):
    job.end(False, "out of memory")
    job.end(True, "too late")
    assert job.final_status is FinalStatus.FAILED
    assert controller.calls == [(False, "out of memory")]


def test_an_end_that_did_not_reach_the_controller_may_be_tried_again(job, controller):
    controller.end_job = lambda succeeded, reason: 1 / 0
    with pytest.raises(ZeroDivisionError):
        job.end(False, "first")
    assert job.final_status is FinalStatus.UNDEFINED
    del controller.end_job
    job.end(False, "second")
    assert controller.calls == [(False, "second")]


def test_a_job_that_ended_by_itself_is_not_ended_again(job, controller):
    job.ended(True)
    job.end(False, "late kill")
    assert job.final_status is FinalStatus.SUCCEEDED
    assert controller.calls == []


def test_a_savepoint_goes_from_pending_to_succeeded(job, started):
    savepoint = job.create_savepoint("/models")
    assert job.savepoint(savepoint.id).state is SavepointState.PENDING
    started[0]()
    done = job.savepoint(savepoint.id)
    assert (done.state, done.path) == (SavepointState.SUCCEEDED, "/models/model.ckpt-1")


def test_a_savepoint_that_fails_says_why(job, controller, started):
    controller.error = SaveFailed("disk full")
    savepoint = job.create_savepoint("")
    started[0]()
    failed = job.savepoint(savepoint.id)
    assert (failed.state, failed.message) == (SavepointState.FAILED, "disk full")


def test_savepoints_have_ids_of_their_own(job):
    assert [job.create_savepoint("").id for _ in range(3)] == ["1", "2", "3"]
    with pytest.raises(NotFound, match="no savepoint '9'"):
        job.savepoint("9")


def test_suspending_twice_is_the_same_as_once(job, controller):
    job.suspend()
    job.suspend()
    job.resume()
    assert controller.calls == ["stop", "stop", "resume"]
