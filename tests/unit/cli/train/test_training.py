import io
import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from megalith.cli.cluster.local_process import ProcessFailed
from megalith.cli.train import training
from megalith.cli.train.training import TimeLeft, summary_line
from megalith.control import BarrierHolder, BarrierStatus, MemberStatus
from megalith.errors import DeadlinePassed
from megalith.wire.pieces import PieceCounts


def status(
    *positions, phase="running", finished=False, metrics=None, holders=(), pieces=None, ending=""
):
    workers = [
        SimpleNamespace(
            role="worker",
            position=done,
            total_batches=total,
            examples_per_s=10.0,
            loss=0.5,
            metrics=metrics or {},
            is_finished=finished,
            standing="alive",
        )
        for done, total in positions
    ]
    barrier = BarrierStatus(0, bool(holders), "", "", holders)
    return SimpleNamespace(
        phase=phase,
        members=workers,
        global_step=7,
        barrier=barrier,
        pieces=pieces,
        ending=ending,
        outcome="",
    )


def test_of_an_input_that_is_handed_out_the_pieces_say_how_far_it_is():
    pieces = PieceCounts(total=9, done=4, held=2, returned=0, is_followed=False)
    assert summary_line(status((50, 0), (60, 0), pieces=pieces))[:2] == (4, 9)
    followed = PieceCounts(total=9, done=4, held=2, returned=0, is_followed=True)
    assert summary_line(status((50, 0), (60, 0), pieces=followed))[:2] == (110, 0)


def test_workers_that_have_not_begun_are_not_taken_for_done():
    assert summary_line(status((0, 0), (0, 0))) == (0, 0, "step 7  20 examples/s  loss 0.5000")


def test_an_endless_job_shows_its_rate():
    assert summary_line(status((5, 0), (6, 0))) == (11, 0, "step 7  20 examples/s  loss 0.5000")


def test_the_total_is_known_once_every_worker_has_said_its_share():
    assert summary_line(status((0, 440), (0, 0)))[:2] == (0, 0)
    assert summary_line(status((0, 440), (0, 440)))[:2] == (0, 880)


def test_a_narrow_terminal_shows_the_figures_and_the_bar(monkeypatch):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    running = status((3, 10), metrics={"auc": 0.75, "calibration": 1.0})
    monkeypatch.setattr(training, "statuses", lambda *_: iter([running]))
    anything = MagicMock()
    with pytest.raises(ProcessFailed):
        training.follow(anything, anything, anything, anything, console)

    said = re.sub("\x1b[^a-zA-Z]*[a-zA-Z]", "", text.getvalue())
    assert "…" not in said
    assert "predicted / actual 1.0000" in said
    assert re.search(r"\u2501 +30% 0:00:00 -:--:--", said)


def test_when_all_batches_are_done_the_rest_is_evaluation():
    assert summary_line(status((5, 5), (6, 6))) == (11, 11, "step 7  evaluating and saving")
    assert summary_line(status((5, 0), (6, 0), finished=True)) == (
        11,
        0,
        "step 7  evaluating and saving",
    )
    assert summary_line(status((4, 5), (6, 6)))[2].endswith("loss 0.5000")


def test_a_cluster_that_forms_says_so():
    assert summary_line(status((0, 9), phase="forming")) == (0, 0, "forming the cluster")


def test_what_a_task_says_of_its_steps_stands_beside_the_loss():
    line = summary_line(status((1, 9), metrics={"auc": 0.75}))[2]
    assert line.endswith("loss 0.5000  AUC 0.7500")


class Cluster:
    """A controller that is asked in vain twice, and runs, or has exited meanwhile."""

    def __init__(self, exit_status=None):
        self.controller = self
        self.controller_status = exit_status
        self._answers = [
            DeadlinePassed("busy"),
            DeadlinePassed("busy"),
            SimpleNamespace(outcome=""),
        ]

    def status(self):
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Supervisor:
    is_controller_expected = False

    def __init__(self):
        self.said = []

    def look(self, *, is_over=False):
        """All processes run."""

    def say_silent(self, error):
        self.said.append("silent")

    def say_heard(self):
        self.said.append("heard")


def test_a_controller_that_runs_and_does_not_answer_in_time_is_asked_again(monkeypatch):
    monkeypatch.setattr(training, "_POLL_S", 0.0)
    supervisor = Supervisor()
    assert next(training.statuses(Cluster(), supervisor)).outcome == ""
    assert supervisor.said == ["silent", "silent", "heard"]


def test_a_controller_that_is_gone_is_not_waited_for():
    with pytest.raises(ProcessFailed, match="the controller does not answer: busy"):
        next(training.statuses(Cluster(exit_status=1), Supervisor()))


def test_the_time_left_is_that_of_the_batches_left_at_the_rate_so_far():
    now = [100.0]
    time_left = TimeLeft(lambda: now[0])
    assert time_left.text(50, 1050) == ""  # where it begins says nothing of its speed
    now[0] = 110.0
    assert time_left.text(150, 1050) == "  1:30 left"
    assert time_left.text(1050, 1050) == ""
    assert time_left.text(150, 0) == ""


@pytest.mark.parametrize(
    ("now", "is_shown"),
    [
        (status((4, 10), (4, 10)), True),
        (status((4, 10), (4, 10), ending="worker-1 failed"), False),
        (status((4, 10), (4, 10), finished=True), False),  # by --max-steps
    ],
)
def test_no_time_is_left_once_the_job_ends_before_its_last_batch(now, is_shown, monkeypatch):
    monkeypatch.setattr(training, "_LINE_S", 0.0)
    monkeypatch.setattr(training.TimeLeft, "text", lambda *args: "  1:05 left")
    monkeypatch.setattr(training, "statuses", lambda *args: iter([now]))
    console = Console(file=io.StringIO(), width=200)
    anything = MagicMock()
    with pytest.raises(ProcessFailed, match="the controller is gone"):
        training.follow(anything, anything, anything, anything, console)
    assert ("left" in console.file.getvalue()) == is_shown
    assert "8/20 batches" in console.file.getvalue()


def test_training_that_is_held_says_who_holds_it_instead_of_a_rate_of_0():
    held = status((1, 9), holders=(BarrierHolder("operator", "look at data", "", 1),))
    assert summary_line(held)[2] == "step 7  stopped by an operator: look at data"


def test_the_summary_counts_what_killed_workers_had_trained():
    console = Console(width=200, record=True, file=io.StringIO())
    there = ("127.0.0.1:1", "", True, 0.0, "alive")
    worker = MemberStatus("worker", 0, *there, examples=500, examples_before=40)
    ended = SimpleNamespace(
        outcome="succeeded",
        reason="all workers finished",
        results={},
        members=[worker],
        global_step=7,
        last_checkpoint="model.ckpt-7",
        input="",
        pieces=None,
    )
    training.print_summary(ended, 10.0, console)
    text = console.export_text()
    assert re.search(r"examples +│ 540 ", text)
    assert re.search(r"examples/s +│ 54 ", text)


@pytest.mark.parametrize(
    ("examples", "skipped", "stop_reason", "is_said"),
    [
        (0, 0, "", True),
        (500, 3, "", False),
        (0, 3, "", False),
        (0, 0, "not the hours of --train-window", False),
    ],
)
def test_a_finished_job_that_is_started_again_says_that_nothing_was_left(
    examples, skipped, stop_reason, is_said
):
    console = Console(width=200, record=True, file=io.StringIO())
    worker = SimpleNamespace(
        examples=examples,
        examples_before=0,
        rows=0,
        skipped_batches=skipped,
        skipped_messages=0,
        late_files=2,
        missing_values=43854,
        hook_errors=4000,
        stop_reason=stop_reason,
    )
    ended = SimpleNamespace(
        outcome="succeeded",
        reason="all workers finished",
        results={"missing_values": 1691.0},
        members=[worker],
        global_step=7,
        last_checkpoint="model.ckpt-7",
        input="goes on where it was",
        pieces=None,
    )
    training.print_summary(ended, 1.0, console)

    text = console.export_text()
    assert ("no batch was trained" in text) == is_said
    assert re.search(r"missing values in the evaluation +│ 1,691 ", text)
    assert re.search(r"missing values +│ 43,854 ", text)
    assert bool(re.search(r"batches left out +│ 3 ", text)) == (skipped == 3)
    assert re.search(r"files left out +│ 2 ", text)
    assert "messages left out" not in text
    assert re.search(r"errors of hooks +│ 4,000 ", text)
