import math
from dataclasses import replace
from datetime import time
from time import monotonic
from types import SimpleNamespace

import pytest

from megalith.controller.config import ControllerConfig
from megalith.controller.saving.records import SaveRecord
from megalith.controller.saving.schedule import SaveNews, SaveSchedule, Unsaved
from megalith.controller.saving.tide import Tide
from megalith.errors import InvalidSetting
from megalith.runtime.day_window import DayWindow


def test_by_the_clock_it_counts_from_the_last_save():
    schedule = SaveSchedule(10.0, 0, now=100.0, step=0)
    assert not schedule.is_due(105.0, 10**9)
    assert schedule.next_s(105.0) == 5.0
    assert schedule.is_due(115.0, 0)
    schedule.restart(115.0, 7)
    assert not schedule.is_due(120.0, 8)
    assert schedule.next_step == 0


def test_by_steps_it_counts_from_the_last_saved_step():
    schedule = SaveSchedule(0.0, 100, now=0.0, step=40)
    assert schedule.next_step == 140
    assert not schedule.is_due(10.0**9, 139)
    assert schedule.is_due(0.0, 140)
    assert schedule.next_s(0.0) == math.inf


def test_without_a_cadence_it_is_never_due():
    assert not SaveSchedule(0.0, 0, now=0.0, step=0).is_due(10.0**9, 10**9)
    assert not SaveSchedule(0.0, 0, now=0.0, step=0, first_s=5.0).is_due(10.0**9, 10**9)


@pytest.mark.parametrize(("every_s", "every_steps"), [(600.0, 0), (0.0, 100)])
def test_the_first_save_may_be_due_earlier(every_s, every_steps):
    schedule = SaveSchedule(every_s, every_steps, now=100.0, step=0, first_s=60.0)
    assert not schedule.is_due(159.0, 99)
    assert schedule.is_due(160.0, 0)
    schedule.restart(160.0, 50)
    assert not schedule.is_due(700.0, 149)
    assert schedule.is_due(760.0, 150)


def test_a_first_save_that_fails_is_tried_again_soon_and_ever_less_often():
    """Until there is a checkpoint, a ps that dies starts empty."""
    schedule = SaveSchedule(3600.0, 0, now=0.0, step=0, first_s=60.0)
    now = 60.0
    for pause_s in (60.0, 120.0, 240.0, 480.0, 600.0, 600.0):
        schedule.restart(now, 50, has_failed=True)
        assert schedule.next_s(now) == pause_s
        now += pause_s
        assert schedule.is_due(now, 50)

    schedule.restart(now, 50)
    assert schedule.next_s(now) == 3600.0
    schedule.restart(now, 60, has_failed=True)
    assert schedule.next_s(now) == 3600.0, "there is a checkpoint, and increments of it"


@pytest.mark.parametrize(
    ("every_s", "every_steps", "first_s", "pauses_s"),
    [(100.0, 0, 60.0, [60.0, 100.0, 100.0]), (0.0, 10**9, 900.0, [900.0, 900.0])],
)
def test_a_first_save_that_fails_is_tried_again_no_later_than_any_other(
    every_s, every_steps, first_s, pauses_s
):
    schedule = SaveSchedule(every_s, every_steps, now=0.0, step=0, first_s=first_s)
    now = 60.0
    for pause_s in pauses_s:
        schedule.restart(now, 1, has_failed=True)
        assert schedule.next_s(now) == pause_s
        now += pause_s


def test_both_tries_of_a_save_that_fails_are_one_save_to_the_schedule():
    schedule = SaveSchedule(3600.0, 0, now=0.0, step=0, first_s=60.0)
    schedule.restart(60.0, 50, has_failed=True)
    schedule.restart(61.0, 50, has_failed=True)
    assert schedule.next_s(61.0) == 60.0


@pytest.mark.parametrize(("error", "next_s"), [("no room", 60.0), ("", 600.0)])
def test_what_became_of_the_first_save_decides_when_the_next_one_is_due(error, next_s):
    cluster = SimpleNamespace(checkpoint_saved=lambda path, at_s, pushes: None)
    schedule = SaveSchedule(600.0, 0, now=0.0, step=0, first_s=60.0)
    metrics = SimpleNamespace(saved=lambda record: None)
    news = SaveNews(cluster, schedule, Unsaved(cluster, "", 0), metrics)
    news.tell(SaveRecord(9.0, 1.0, 50, "" if error else "/m/model.ckpt-50", error))
    assert schedule.next_s(monotonic()) == pytest.approx(next_s, abs=5)


def test_a_first_save_is_no_later_than_any_other():
    schedule = SaveSchedule(10.0, 0, now=100.0, step=0, first_s=60.0)
    assert schedule.is_due(110.0, 0)


def test_two_cadences_are_refused():
    with pytest.raises(InvalidSetting, match="give one of them"):
        ControllerConfig(model_dir="m", save_every_s=1.0, save_every_steps=1)


@pytest.mark.parametrize("error", ["", "no room"])
def test_a_save_in_place_of_an_increment_does_not_put_off_the_planned_one(error):
    """One comes every minute where a delta log is too small, and goes with the next save."""
    cluster = SimpleNamespace(checkpoint_saved=lambda path, at_s, pushes: None)
    schedule = SaveSchedule(0.0, 100, now=0.0, step=0)
    unsaved = Unsaved(cluster, "/m/model.ckpt-0", 0)
    metrics = SimpleNamespace(saved=lambda record: None)
    news = SaveNews(cluster, schedule, unsaved, metrics)
    stopgap = SaveRecord(9.0, 1.0, 90, "/m/model.ckpt-90", error, is_stopgap=True)

    news.tell(stopgap)
    assert schedule.next_step == 100
    news.tell(replace(stopgap, step=110, is_stopgap=False))
    assert schedule.next_step == 210


def test_a_checkpoint_is_behind_a_table_that_was_dropped_since():
    """Nothing may be trained any more: then only a planned save makes the drop outlast the job."""
    dropped = {"old": 100.0}
    cluster = SimpleNamespace(
        global_step=7,
        has_unsaved_pushes=False,
        dropped_tables=lambda: dropped,
        checkpoint_saved=lambda path, at_s, pushes: None,
    )
    unsaved = Unsaved(cluster, "/m/model.ckpt-7", 7)
    metrics = SimpleNamespace(saved=lambda record: None)
    news = SaveNews(cluster, SaveSchedule(0.0, 0, 0.0, 0), unsaved, metrics)
    assert unsaved.is_behind
    news.tell(SaveRecord(106.0, 5.0, 7, "/m/model.ckpt-r1-7"))
    assert not unsaved.is_behind
    dropped["older"] = 103.0  # while it was written
    assert unsaved.is_behind


def test_what_a_crash_loses_counts_from_the_begin_of_a_save():
    """Rows that were read first lack what was trained while the others were written."""
    told = []
    cluster = SimpleNamespace(checkpoint_saved=lambda *arguments: told.append(arguments))
    unsaved = Unsaved(cluster, "", 0)
    metrics = SimpleNamespace(saved=lambda record: None)
    news = SaveNews(cluster, SaveSchedule(0.0, 0, 0.0, 0), unsaved, metrics)
    news.tell(SaveRecord(2000.0, 1500.0, 7, "/m/model.ckpt-7", pushes={1: 40}))
    assert told == [("/m/model.ckpt-7", 500.0, {1: 40})]


def tide_at(now):
    window = DayWindow.parse("01:00-03:00", "--tide-window")
    return Tide(replace(window, now=now), 5.0)


@pytest.mark.golden("G11")
@pytest.mark.parametrize(
    ("hour", "passed_s", "is_due"),
    [(None, 5, False), (None, 15, True), (2, 5, False), (2, 15, True), (4, 2, False), (4, 9, True)],
)
def test_outside_the_hours_of_the_tide_its_seconds_count_alone(hour, passed_s, is_due):
    """Every 10 s; with a window of 1 to 3 h every 5 s outside it."""
    tide = None
    if hour is not None:
        tide = tide_at(lambda: time(hour))
    schedule = SaveSchedule(10.0, 0, now=100.0, step=0, tide=tide)
    assert schedule.is_due(100.0 + passed_s, 10**9) == is_due


def test_outside_the_hours_of_the_tide_steps_do_not_count():
    hour = 2
    tide = tide_at(lambda: time(hour))
    schedule = SaveSchedule(0.0, 10, now=100.0, step=0, tide=tide)
    assert (schedule.is_due(101.0, 10), schedule.next_step) == (True, 10)
    hour = 4
    assert (schedule.is_due(101.0, 10), schedule.next_step) == (False, 0)


@pytest.mark.parametrize(("hour", "is_due"), [(2, False), (4, True)])
def test_the_first_save_is_due_only_at_hours_that_plan_saves(hour, is_due):
    """No saves in the window of 1 to 3 h, and every 5 s outside it."""
    tide = tide_at(lambda: time(hour))
    schedule = SaveSchedule(0.0, 0, now=100.0, step=0, tide=tide, first_s=2.0)
    assert schedule.is_due(103.0, 10**9) == is_due


@pytest.mark.parametrize(
    ("now", "is_open"), [("21:59", False), ("22:00", True), ("03:00", True), ("06:30", False)]
)
def test_a_window_over_midnight_is_open_at_night_alone(now, is_open):
    window = DayWindow.parse("22:00-06:30", "--tide-window")
    assert replace(window, now=lambda: time.fromisoformat(now)).is_open == is_open


@pytest.mark.parametrize(
    ("window", "save_s"), [("22:00", 5.0), ("25:00-26:00", 5.0), ("01:00-02:00", 0.0), ("", 5.0)]
)
def test_a_window_that_is_none_is_refused(window, save_s):
    with pytest.raises(InvalidSetting, match="tide-window"):
        ControllerConfig(model_dir="m", tide_window=window, tide_save_s=save_s)


@pytest.mark.golden("G11")
def test_there_is_no_save_at_the_start_and_the_first_one_counts_from_there():
    schedule = SaveSchedule(0.0, 1, now=0.0, step=0)
    assert not schedule.is_due(0.0, 0)
    assert schedule.is_due(0.0, 1)


def test_steps_take_the_place_of_the_clock_that_nobody_set():
    assert ControllerConfig(model_dir="m").save_every_s == 600.0
    assert ControllerConfig(model_dir="m", save_every_steps=5).save_every_s == 0.0
