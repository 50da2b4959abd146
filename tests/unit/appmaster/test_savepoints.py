import pytest

from megalith.appmaster.savepoints import Savepoints, SavepointState
from megalith.errors import NotFound, SaveFailed


class Harness:
    def __init__(self):
        self.started, self.kept, self.is_over, self.error = [], [{}], False, None
        self.savepoints = self.make()

    def make(self):
        return Savepoints(
            self.save, self.started.append, lambda: self.is_over, self.kept[-1], self.kept.append
        )

    def save(self, directory):
        if self.error:
            raise self.error
        return f"{directory}/model.ckpt-1"


@pytest.fixture
def harness():
    return Harness()


def test_a_savepoint_goes_from_pending_to_succeeded(harness):
    savepoint = harness.savepoints.create("/models")
    assert savepoint.state is SavepointState.PENDING
    assert harness.savepoints.finished_path(savepoint.id) == ""
    harness.started[0]()
    done = harness.savepoints.get(savepoint.id)
    assert (done.state, done.path) == (SavepointState.SUCCEEDED, "/models/model.ckpt-1")
    assert harness.savepoints.finished_path(savepoint.id) == done.path
    assert [kept["all"][0]["state"] for kept in harness.kept[1:]] == [
        "pending",
        "running",
        "succeeded",
    ]


def test_a_failed_savepoint_says_why_and_the_next_may_begin(harness):
    harness.error = SaveFailed("disk full")
    savepoint = harness.savepoints.create("")
    harness.started[0]()
    failed = harness.savepoints.get(savepoint.id)
    assert (failed.state, failed.message) == (SavepointState.FAILED, "disk full")
    assert harness.savepoints.create("").id == "2"


def test_a_second_one_is_refused_while_one_is_under_way(harness):
    harness.savepoints.create("")
    refused = harness.savepoints.create("")
    assert (refused.id, refused.message) == ("", "savepoint 1 is pending; wait until it is done")
    assert len(harness.started) == len(harness.savepoints.all()) == 1


def test_none_is_taken_after_the_end(harness):
    harness.is_over = True
    assert harness.savepoints.create("").message == "the application has ended"
    assert harness.started == []


def test_an_unknown_one_is_not_found(harness):
    with pytest.raises(NotFound, match="no savepoint '9'"):
        harness.savepoints.get("9")
    assert harness.savepoints.finished_path("9") == ""


def test_a_restarted_appmaster_knows_them_and_calls_the_unfinished_failed(harness):
    harness.savepoints.create("/models")
    harness.started[0]()
    harness.savepoints.create("/models")
    first, second = harness.make().all()
    assert (first.state, first.path) == (SavepointState.SUCCEEDED, "/models/model.ckpt-1")
    assert (second.state, second.message) == (
        SavepointState.FAILED,
        "the AppMaster was restarted while it was written",
    )
