"""Files of an operator that say at which step something happens, and when planned saves are made."""

import logging
from dataclasses import replace
from datetime import time

import pytest

from megalith.controller.config import ControllerConfig
from megalith.controller.saving.permit import ONLINE, SavePermit
from megalith.controller.step_files import LIMIT, StepFiles
from megalith.errors import InvalidSetting, SaveFailed
from megalith.runtime.day_window import DayWindow


class Job:
    """What the files are obeyed by."""

    def __init__(self, model_dir, first_step=0):
        self.step = first_step
        self.req_time_s = 0
        self.calls = []
        self.error = None
        self.files = StepFiles(
            model_dir,
            first_step,
            step=lambda: self.step,
            req_time_s=lambda: self.req_time_s,
            save=lambda: self.call("save"),
            stop=self.stop,
        )

    def call(self, what):
        if self.error:
            raise self.error
        self.calls.append((what, self.step))

    def stop(self, file):
        self.stopped_by = file
        self.call("stop")

    def look_at(self, step):
        self.step = step
        self.files.look()
        return self.calls


def test_a_file_is_obeyed_once_when_its_step_is_reached_or_passed(tmp_path):
    for name in ("dump_100", "dump_250", "stop_300"):
        (tmp_path / name).touch()
    job = Job(tmp_path)
    assert job.look_at(99) == []
    assert job.look_at(100) == [("save", 100)]
    assert job.look_at(249) == [("save", 100)]
    assert job.look_at(290) == [("save", 100), ("save", 290)]
    assert job.look_at(305)[2:] == [("stop", 305)]
    assert job.stopped_by == "stop_300"
    assert job.look_at(400)[3:] == []
    assert (tmp_path / "dump_100").exists()


def test_a_file_of_a_step_that_had_passed_before_is_not_obeyed(tmp_path, caplog):
    (tmp_path / "stop_40").touch()
    job = Job(tmp_path, first_step=40)
    with caplog.at_level(logging.INFO):
        assert job.look_at(41) == []
        assert job.look_at(42) == []
    assert caplog.text.count("stop_40 is not obeyed: this run began at step 40") == 1


def test_a_save_that_fails_is_tried_again(tmp_path, caplog):
    (tmp_path / "dump_5").touch()
    job = Job(tmp_path)
    job.error = SaveFailed("the disk is full")
    assert job.look_at(6) == []
    assert "dump_5 failed and will be tried again: the disk is full" in caplog.text
    job.error = None
    assert job.look_at(8) == [("save", 8)]


@pytest.mark.parametrize("name", ["dump_", "dump_soon", "stop_-5", "stop_1.5", "dump_" + "9" * 30])
def test_a_file_without_a_step_is_said_once_and_not_obeyed(tmp_path, caplog, name):
    (tmp_path / name).touch()
    job = Job(tmp_path)
    job.look_at(10**17)
    assert job.look_at(10**18) == []
    assert caplog.text.count(f"{name} is not obeyed") == 1


def test_other_files_are_left_alone(tmp_path, caplog):
    for name in ("model.ckpt-5", "checkpoint", "undump_5", "dump5", "monolith_action"):
        (tmp_path / name).touch()
    assert Job(tmp_path).look_at(10) == []
    assert not caplog.text


def test_training_ends_when_data_of_the_limit_is_trained(tmp_path):
    (tmp_path / LIMIT).write_text("1000\n")
    job = Job(tmp_path)
    job.req_time_s = 999
    assert job.look_at(5) == []
    job.req_time_s = 1000
    assert job.look_at(6) == [("stop", 6)]
    assert job.look_at(7) == [("stop", 6)]


@pytest.mark.parametrize("text", ["", "-1", "0", "tomorrow", "9" * 100])
def test_a_limit_that_is_none_ends_nothing(tmp_path, text):
    (tmp_path / LIMIT).write_text(text)
    job = Job(tmp_path)
    job.req_time_s = 2**40
    assert job.look_at(5) == []


def test_a_limit_that_is_no_number_is_said_once(tmp_path, caplog):
    (tmp_path / LIMIT).write_text("tomorrow")
    job = Job(tmp_path)
    job.look_at(1)
    job.look_at(2)
    assert caplog.text.count("limit_req_time is not obeyed") == 1


def test_planned_saves_wait_for_the_file_online(tmp_path, caplog):
    permit = SavePermit(tmp_path, None, only_online=True)
    with caplog.at_level(logging.INFO):
        assert not permit.is_given()
        assert not permit.is_given()
        assert permit.missing() == f"there is no {tmp_path / ONLINE}"
        (tmp_path / ONLINE).touch()
        assert permit.is_given()
        assert permit.missing() == ""
    assert [record.getMessage() for record in caplog.records] == [
        f"planned saves wait: there is no {tmp_path / ONLINE}",
        "planned saves are made again",
    ]


@pytest.mark.parametrize(("hour", "is_given"), [(17, False), (18, True), (20, True), (21, False)])
def test_planned_saves_are_made_in_their_hours(tmp_path, hour, is_given):
    window = DayWindow.parse("18:00-21:00", "--save-window")
    permit = SavePermit(tmp_path, replace(window, now=lambda: time(hour)), only_online=False)
    assert permit.is_given() == is_given


def test_hours_that_are_none_are_refused():
    with pytest.raises(InvalidSetting, match="--save-window='18-21'"):
        ControllerConfig(model_dir="m", save_window="18-21")
