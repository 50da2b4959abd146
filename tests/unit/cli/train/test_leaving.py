import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from megalith.cli.train.leaving import leave
from megalith.cli.train.news import News
from megalith.cli.train.stop_signals import StopSignals
from megalith.control import MemberStatus, RestoreReport, SaveResult
from megalith.errors import PeerUnreachable, SaveFailed
from support.training_status import TRAINING

UNSAVED = "steps 12..40 since model/model.ckpt-12"


class Job:
    """A controller that answers from memory; `fails` is what its save raises, `times` times."""

    def __init__(self, now, fails=None, is_whole=True, times=1000):
        self._now = now
        self._fails = fails
        self._times = times
        self._is_whole = is_whole
        self.saves = []

    def status(self):
        return self._now

    def hear(self, unsaved):
        self._now = replace(self._now, unsaved=unsaved)

    def save(self, timeout_s, hold, is_last):
        self.saves.append((timeout_s, hold, is_last))
        if self._fails and len(self.saves) <= self._times:
            raise self._fails
        if self._is_whole:
            self._now = replace(self._now, unsaved="", last_checkpoint="model/model.ckpt-40")
        return SaveResult("model/model.ckpt-40", 40, 1234, seconds=0.5)


@pytest.fixture
def left(monkeypatch):
    """(job, whether all was saved, what was printed) after a leave."""
    naps = []
    monkeypatch.setattr(time, "sleep", naps.append)

    def run(unsaved=UNSAVED, fails=None, saves=True, is_whole=True, times=1000):
        job = Job(replace(TRAINING, unsaved=unsaved), fails, is_whole, times)
        console = Console(file=io.StringIO(), width=200)
        news = News(console, "model")
        news.tell(job.status())
        is_saved = leave(
            job,
            news,
            console,
            StopSignals(),
            saves=saves,
            timeout_s=300.0,
            heartbeat_s=1.0,
            clock=lambda: sum(naps),
        )
        return job, is_saved, console.file.getvalue()

    return run


def test_what_was_trained_is_saved_behind_the_barrier_and_said(left):
    job, is_saved, said = left()
    assert is_saved
    assert job.saves == [(300.0, True, True)]
    assert f"saving the {UNSAVED}, for at most 300 s" in said
    assert "saved model/model.ckpt-40: 1,234 rows in 0.5 s" in said
    assert "stopping; saved: model/model.ckpt-40" in said


def test_a_part_of_a_model_does_not_count_as_saved(left):
    _, is_saved, said = left(is_whole=False)
    assert not is_saved
    assert f"stopping; not saved: {UNSAVED}" in said


def test_nothing_is_saved_where_nothing_is_new_or_it_is_not_wanted(left):
    assert left(unsaved="")[0].saves == []
    job, is_saved, said = left(saves=False)
    assert is_saved
    assert job.saves == []
    assert f"stopping; not saved: {UNSAVED}" in said


def test_what_was_restored_is_said_before_what_is_saved(left, monkeypatch):
    """The cluster forms between the two looks: nothing was known of it at the first one."""
    ps = MemberStatus("ps", 0, "h:1", "h:2", True, 0.0, "alive", restored=RestoreReport())
    job = Job(replace(TRAINING, phase="forming"))
    formed = replace(TRAINING, unsaved=UNSAVED, members=(ps,))
    monkeypatch.setattr(time, "sleep", lambda _: setattr(job, "_now", formed))
    console = Console(file=io.StringIO(), width=200)
    news = News(console, "model")
    leave(
        job,
        news,
        console,
        StopSignals(),
        saves=True,
        timeout_s=300.0,
        heartbeat_s=1.0,
        clock=lambda: 0.0,
    )
    said = console.file.getvalue()
    assert said.index("nothing was restored") < said.index("saving the") < said.index("saved ")


def test_a_push_that_no_ps_has_reported_yet_is_saved_too(monkeypatch):
    job = Job(TRAINING)
    monkeypatch.setattr(time, "sleep", lambda _: job.hear(UNSAVED))
    console = Console(file=io.StringIO(), width=200)
    is_saved = leave(
        job,
        News(console, "model"),
        console,
        StopSignals(),
        saves=True,
        timeout_s=300.0,
        heartbeat_s=1.0,
        clock=lambda: 0.0,
    )
    assert is_saved
    assert job.saves == [(300.0, True, True)]


def test_a_save_that_fails_is_said_and_so_is_what_is_lost(left):
    _, is_saved, said = left(fails=SaveFailed("no space left on /disk"))
    assert not is_saved
    assert "the last save failed: no space left on /disk" in said
    assert f"stopping; not saved: {UNSAVED}" in said


def test_a_save_that_fails_is_tried_again_until_there_is_room(left):
    job, is_saved, said = left(fails=SaveFailed("no space left on /disk"), times=2)
    assert is_saved
    assert [timeout_s for timeout_s, _, _ in job.saves] == [300.0, 298.0, 294.0]
    assert "no space left on /disk; it is tried again for 298 s" in said
    assert "stopping; saved: model/model.ckpt-40" in said


def test_a_save_that_fails_is_given_up_when_the_time_is_over(left):
    job, is_saved, said = left(fails=SaveFailed("no space left on /disk"))
    assert not is_saved
    assert job.saves[-1][0] == 30.0  # no pause fits in before the end
    assert said.count("it is tried again") == len(job.saves) - 1


def test_another_failure_of_a_save_is_not_tried_again(left):
    job, is_saved, _ = left(fails=PeerUnreachable("the controller is away"))
    assert not is_saved
    assert len(job.saves) == 1


def test_a_second_ctrl_c_stops_at_once_and_says_what_is_not_saved(left):
    _, is_saved, said = left(fails=KeyboardInterrupt())
    assert not is_saved
    assert "stopping at once" in said
    assert f"stopping; not saved: {UNSAVED}" in said
