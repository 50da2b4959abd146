import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from megalith.cli.ctl.drive import save as saving
from megalith.control import LastSave, SaveProgress, SaveResult
from megalith.errors import PeerUnreachable, SaveFailed

SAVED = SaveResult("model.ckpt-7", 7, 30)
LAST = LastSave(1.0, 0.5, 6, "model.ckpt-6", "", rows=10_000, bytes=10_000_000)
FAILED = LastSave(1.0, 0.5, 6, "", "no space left on device")
PROGRESS = SaveProgress(step=7, seconds=1.5, bytes=2_500_000, rows=12_345)


class Job:
    """Says how far a save is; the save ends once it was asked twice."""

    def __init__(self, progress, last=None):
        self._progress = progress
        self._last = last
        self._asked = 0
        self.was_asked = threading.Event()

    def status(self):
        self._asked += 1
        if self._asked == 2:
            self.was_asked.set()
        if isinstance(self._progress, Exception):
            raise self._progress
        return SimpleNamespace(saving=self._progress, last_save=self._last)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(saving, "_LOOK_S", 0.01)


def watched(job, save):
    with open("/dev/null", "w") as nowhere:
        return saving._watched(job, save, Console(file=nowhere))


@pytest.mark.parametrize(
    ("progress", "last", "said", "share"),
    [
        (PROGRESS, None, "saving step 7: 2.5 MB of about 12,345 rows in 1.5 s", None),
        (PROGRESS, FAILED, "saving step 7: 2.5 MB of about 12,345 rows in 1.5 s", None),
        (
            PROGRESS,
            LAST,
            "saving step 7: about 2,500 of 12,345 rows, 2.5 MB in 1.5 s",
            2500 / 12345,
        ),
        (None, LAST, "waiting for another save, or for workers to block", None),
        (PeerUnreachable("gone"), None, "saving; the controller does not answer", None),
    ],
)
def test_a_save_is_followed_until_it_is_done(progress, last, said, share):
    job = Job(progress, last)
    assert saving._progress(job) == (said, pytest.approx(share) if share else None)

    def save():
        assert job.was_asked.wait(20)
        return replace(SAVED, rows=31)

    assert watched(job, save).rows == 31


def test_a_save_that_fails_raises_what_it_raised():
    def fail():
        raise SaveFailed("no room")

    with pytest.raises(SaveFailed, match="no room"):
        watched(Job(None), fail)


def test_a_stopgap_that_was_removed_is_no_older_checkpoint(capsys):
    removed = ("model.ckpt-3", "model.ckpt-r1-6")
    saving._show_saved(replace(SAVED, removed=removed, removed_stopgap="model.ckpt-r1-6"))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "removed model.ckpt-3, an older checkpoint that is not kept",
        "removed model.ckpt-r1-6, which was made in place of an increment; a save takes its place",
    ]
