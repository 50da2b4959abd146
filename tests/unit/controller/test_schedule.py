import math

import pytest

from megalith.controller.config import ControllerConfig
from megalith.controller.saving.schedule import SaveSchedule
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
