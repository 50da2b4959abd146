"""Hooks: their order, what they are told, what their errors do, and those that are built in."""

import logging
from dataclasses import asdict, replace
from datetime import time

import pytest

from megalith.errors import InvalidSetting, Unavailable
from megalith.runtime.day_window import DayWindow
from megalith.wire import codec
from megalith.wire.reports import HookErrors, WorkerReport
from megalith.worker.config import HookSettings
from megalith.worker.hooks import Hook, RunningWorker, StepDone, current_worker
from megalith.worker.hooks.chosen import hooks_of, hooks_of_task
from megalith.worker.hooks.figures import TableSizes, Throughput
from megalith.worker.hooks.hook import being
from megalith.worker.hooks.hook_list import GO_ON, HookList
from megalith.worker.hooks.hours import SlowStart, TideStop

DONE = StepDone(7, 0.5, {}, 100)


def a_worker(index=0, steps=(0,), cluster=None):
    """Each pause takes it to the next of `steps`; `pauses` has how long they were."""
    left = list(steps)
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(left) > 1:
            left.pop(0)
        return True

    def step():
        return left[0]

    worker = RunningWorker(
        index, 3, cluster=cluster, global_step=step, step_of_job=step, pause=pause
    )
    worker.pauses = pauses
    return worker


def window_at(text, hour):
    return replace(DayWindow.parse(text, "--train-window"), now=lambda: time(hour))


class Recorded(Hook):
    def __init__(self, name, calls):
        self.name = name
        self.calls = calls

    def begin(self, worker):
        self.calls.append((self.name, "begin"))

    def before_step(self, worker):
        self.calls.append((self.name, "before"))

    def after_step(self, worker, done):
        self.calls.append((self.name, "after"))

    def end(self, worker):
        self.calls.append((self.name, "end"))


class Broken(Hook):
    def after_step(self, worker, done):
        raise Unavailable("no such server")


def test_every_moment_walks_the_list_in_its_order():
    calls = []
    hooks = HookList([Recorded("a", calls), Recorded("b", calls)])
    worker = a_worker()
    hooks.begin(worker)
    hooks.before_step(worker)
    hooks.after_step(worker, DONE)
    hooks.end(worker)
    assert calls == [
        (name, moment) for moment in ("begin", "before", "after", "end") for name in "ab"
    ]


def test_a_hook_that_raises_is_named_and_ends_the_worker():
    hooks = HookList([Broken()])
    with pytest.raises(Unavailable) as raised:
        hooks.after_step(a_worker(), DONE)
    assert raised.value.__notes__ == ["raised by the hook Broken.after_step"]
    assert hooks.errors.hook_errors == 0


def test_a_hook_that_raises_is_counted_and_the_others_are_called_when_told_so(caplog):
    calls = []
    hooks = HookList([Broken(), Recorded("b", calls)], GO_ON)
    hooks.after_step(a_worker(), DONE)
    hooks.after_step(a_worker(), DONE)
    assert hooks.errors == HookErrors(2, ("Broken.after_step raised Unavailable: no such server",))
    assert calls == [("b", "after")] * 2
    assert "the hook Broken.after_step failed" in caplog.text


def test_an_error_of_a_hook_that_is_no_utf_8_can_be_reported(monkeypatch):
    # pytest-xdist cannot send a captured line with such a name, and ends the whole run
    monkeypatch.setattr(logging.getLogger("megalith.worker.hooks.hook_list"), "disabled", True)

    class NamesAFile(Hook):
        def end(self, worker):
            raise ValueError("no columns in day-\udcff.csv")

    hooks = HookList([NamesAFile()], GO_ON)
    hooks.end(a_worker())
    report = codec.worker_report_to_proto(WorkerReport(**asdict(hooks.errors)))
    assert list(report.hook_failures) == [
        "NamesAFile.end raised ValueError: no columns in day-\\udcff.csv"
    ]


@pytest.mark.golden("G30")
def test_the_current_worker_is_known_inside_and_nobody_outside():
    worker = a_worker()
    assert current_worker() is None
    with being(worker):
        assert current_worker() is worker
    assert current_worker() is None


@pytest.mark.golden("G14")
@pytest.mark.parametrize("window", [None, "01:00-05:00"])
def test_a_wait_for_step_0_returns_at_once_also_outside_the_hours(window):
    worker = a_worker()
    closed = window and window_at(window, 10)
    SlowStart(0, 600, closed).begin(worker)
    assert worker.pauses == []
    assert not worker.is_stop_requested


@pytest.mark.golden("G14")
def test_a_wait_for_step_1000_looks_again_until_the_step_is_passed():
    worker = a_worker(steps=(0, 500, 1100))
    SlowStart(1000, 600).begin(worker)
    assert worker.pauses == [0.5, 0.5]
    assert not worker.is_stop_requested


@pytest.mark.golden("G14")
@pytest.mark.parametrize(("hours", "stops"), [("01:00-05:00", True), ("01:00-12:00", False)])
def test_a_worker_ends_outside_its_hours(hours, stops):
    worker = a_worker()
    TideStop(window_at(hours, 10)).before_step(worker)
    assert worker.is_stop_requested == stops


def test_a_worker_that_waits_for_a_step_ends_when_its_hours_are_over():
    worker = a_worker()
    SlowStart(1000, 600, window_at("01:00-05:00", 10)).begin(worker)
    assert worker.is_stop_requested
    assert worker.pauses == []


def test_a_worker_waits_no_longer_than_told_once_the_job_has_begun():
    worker = a_worker(steps=(0, 1, 2))
    now = iter(range(0, 10**6, 60))
    SlowStart(1000, 600, clock=lambda: next(now)).begin(worker)
    # The third look sees step 2; from there it takes 10 to 20 minutes, a minute each.
    assert 2 + 10 <= len(worker.pauses) <= 2 + 21


@pytest.mark.parametrize(("index", "step"), [(0, 0), (1, 693), (2, 1098), (9, 2302)])
def test_worker_i_waits_for_the_logarithm_of_its_number(index, step):
    assert SlowStart.of_worker(index, 1000, 600, None)._wait_until_step == step


def test_speed_is_logged_every_so_often(caplog):
    now = iter((0, 4, 8, 12))
    hook = Throughput(8, clock=lambda: next(now))
    with caplog.at_level(logging.INFO):
        hook.begin(a_worker())
        for _ in range(3):
            hook.after_step(a_worker(), DONE)
    assert [record.getMessage() for record in caplog.records] == [
        "step=7 steps_per_s=0.2 examples_per_s=25"
    ]


class Absent:
    def table_stats(self):
        raise Unavailable("ps-1 is away")


def test_sizes_that_are_not_known_end_nothing(caplog):
    now = iter((0, 5, 10))
    hook = TableSizes(8, clock=lambda: next(now))
    worker = a_worker(cluster=Absent())
    with caplog.at_level(logging.INFO):
        hook.begin(worker)
        hook.after_step(worker, DONE)
        hook.after_step(worker, DONE)
    assert "ps-1 is away" in caplog.text


def test_hooks_come_in_the_documented_order(tmp_path, monkeypatch):
    (tmp_path / "my_hooks.py").write_text(
        "from megalith.worker.hooks import Hook\nclass Mine(Hook): ...\n"
    )

    class Task:
        hooks = (Recorded("task", []),)

    settings = HookSettings(
        hooks=f"{tmp_path}/my_hooks.py:Mine", train_window="22:00-06:30", slow_start_steps=5
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = [type(hook).__name__ for hook in hooks_of(Task(), settings, 0)._hooks]
    assert names == ["SlowStart", "TideStop", "Throughput", "TableSizes", "Recorded", "Mine"]
    others = [type(hook).__name__ for hook in hooks_of(object(), HookSettings(), 1)._hooks]
    assert others == ["SlowStart", "Throughput"]


def a_task(*brought):
    class Task:
        hooks = brought

    return Task()


def test_a_task_brings_hooks_their_classes_and_names(tmp_path, monkeypatch):
    (tmp_path / "brought_hooks.py").write_text(
        "from megalith.worker.hooks import Hook\n"
        "class ByFile(Hook): ...\n"
        "class ByModule(Hook): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = Recorded("made", [])
    by_file = f"{tmp_path}/brought_hooks.py:ByFile"
    hooks = hooks_of_task(a_task(made, Hook, by_file, "brought_hooks:ByModule"))
    assert hooks[0] is made
    assert [type(hook).__name__ for hook in hooks[1:]] == ["Hook", "ByFile", "ByModule"]


@pytest.mark.parametrize(
    ("brought", "message"),
    [
        ("nowhere:Hook", "Task.hooks=nowhere:Hook: no such hook"),
        ("decimal:getcontext", "is no megalith.worker.hooks.Hook"),
        (Recorded, "Task.hooks: Recorded: it cannot be made: TypeError"),
        (dict, "is no megalith.worker.hooks.Hook"),
        (7, "Task.hooks: 7 is no megalith.worker.hooks.Hook"),
    ],
)
def test_what_a_task_brings_that_is_no_hook_is_refused(brought, message):
    with pytest.raises(InvalidSetting, match=message):
        hooks_of_task(a_task(brought))


def test_a_name_alone_instead_of_a_tuple_is_refused():
    task = a_task()
    task.hooks = "my_hooks.py:Mine"
    with pytest.raises(InvalidSetting, match="expected a tuple"):
        hooks_of_task(task)


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ("nowhere:Hook", "--hooks=nowhere:Hook: no such hook"),
        ("datetime:time", "is no megalith.worker.hooks.Hook"),
        ("decimal:getcontext", "is no megalith.worker.hooks.Hook"),
        ("datetime:date", "it cannot be made"),
    ],
)
def test_a_hook_that_is_none_is_refused(hooks, message):
    with pytest.raises(InvalidSetting, match=message):
        hooks_of(object(), HookSettings(hooks=hooks), 0)


@pytest.mark.parametrize(
    "settings",
    [{"train_window": "22-6"}, {"slow_start_steps": -1}, {"on_hook_error": "shrug"}],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(InvalidSetting):
        HookSettings(**settings)
