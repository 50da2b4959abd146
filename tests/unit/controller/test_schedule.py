import math
from dataclasses import replace
from datetime import time

import pytest

from megalith.controller.config import ControllerConfig
from megalith.controller.saving.schedule import SaveSchedule
from megalith.controller.saving.tide import TideWindow
from megalith.errors import InvalidSetting


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


def test_two_cadences_are_refused():
    with pytest.raises(InvalidSetting, match="give one of them"):
        ControllerConfig(model_dir="m", save_every_s=1.0, save_every_steps=1)


@pytest.mark.golden("G11")
@pytest.mark.parametrize(
    ("hour", "passed_s", "is_due"),
    [(None, 5, False), (None, 15, True), (2, 5, False), (2, 15, True), (4, 2, False), (4, 9, True)],
)
def test_outside_the_hours_of_the_tide_its_seconds_count_alone(hour, passed_s, is_due):
    """Every 10 s; with a window of 1 to 3 h every 5 s outside it."""
    tide = None
    if hour is not None:
        tide = replace(TideWindow.parse("01:00-03:00", 5.0), now=lambda: time(hour))
    schedule = SaveSchedule(10.0, 0, now=100.0, step=0, tide=tide)
    assert schedule.is_due(100.0 + passed_s, 10**9) == is_due


def test_outside_the_hours_of_the_tide_steps_do_not_count():
    hour = 2
    tide = replace(TideWindow.parse("01:00-03:00", 5.0), now=lambda: time(hour))
    schedule = SaveSchedule(0.0, 10, now=100.0, step=0, tide=tide)
    assert (schedule.is_due(101.0, 10), schedule.next_step) == (True, 10)
    hour = 4
    assert (schedule.is_due(101.0, 10), schedule.next_step) == (False, 0)


@pytest.mark.parametrize(
    ("now", "is_open"), [("21:59", False), ("22:00", True), ("03:00", True), ("06:30", False)]
)
def test_a_window_over_midnight_is_open_at_night_alone(now, is_open):
    tide = TideWindow.parse("22:00-06:30", 5.0)
    assert replace(tide, now=lambda: time.fromisoformat(now)).is_open == is_open


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
