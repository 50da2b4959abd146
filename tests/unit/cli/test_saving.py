import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from megalith.cli.ctl import saving
from megalith.control import SaveProgress, SaveResult
from megalith.errors import PeerUnreachable, SaveFailed

SAVED = SaveResult("model.ckpt-7", 7, 30)
PROGRESS = SaveProgress(step=7, seconds=1.5, bytes=2_500_000, rows=12_345)


class Job:
    """Says how far a save is; the save ends once it was asked twice."""

    def __init__(self, progress):
        self._progress = progress
        self._asked = 0
        self.was_asked = threading.Event()

    def status(self):
        self._asked += 1
        if self._asked == 2:
            self.was_asked.set()
        if isinstance(self._progress, Exception):
            raise self._progress
        return SimpleNamespace(saving=self._progress)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(saving, "_LOOK_S", 0.01)


def watched(job, save):
    with open("/dev/null", "w") as nowhere:
        return saving._watched(job, save, Console(file=nowhere))


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (PROGRESS, "saving step 7: 2.5 MB of about 12,345 rows in 1.5 s"),
        (None, "waiting for another save, or for workers to block"),
        (PeerUnreachable("gone"), "saving; the controller does not answer"),
    ],
)
def test_a_save_is_followed_until_it_is_done(progress, said):
    job = Job(progress)
    assert saving._progress(job) == said

    def save():
        assert job.was_asked.wait(20)
        return replace(SAVED, rows=31)

    assert watched(job, save).rows == 31


def test_a_save_that_fails_raises_what_it_raised():
    def fail():
        raise SaveFailed("no room")

    with pytest.raises(SaveFailed, match="no room"):
        watched(Job(None), fail)
