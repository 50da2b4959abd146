import json
from types import SimpleNamespace

import pytest

from megalith.cli.runs.run_record import RunRecord
from megalith.control import LastSave
from megalith.runner.config import RunnerConfig


def status(step, results=None):
    worker = SimpleNamespace(
        role="worker",
        index=0,
        global_step=step,
        position=step,
        examples=30,
        examples_before=20,
        examples_per_s=10.0,
        loss=0.5,
        metrics={"auc": 0.7},
        skipped_batches=2,
        skipped_messages=5,
        late_files=1,
        missing_values=9,
        hook_errors=4,
    )
    ps = SimpleNamespace(role="ps", index=0)
    return SimpleNamespace(
        run_id="r1", global_step=step, members=(ps, worker), results=results or {}
    )


def seen(**changes):
    """What a run is decided by, of the status of a job."""
    start = {"phase": "forming", "last_checkpoint": "", "outcome": "", "last_save": None}
    return SimpleNamespace(**{**start, **changes})


def test_figures_are_added_a_line_at_a_time_and_results_at_the_end(tmp_path):
    record = RunRecord(tmp_path, print, wall_clock=lambda: 12.5)
    record.add(status(10))
    record.add(status(20, {"auc": 0.8, "calibration": float("nan")}))
    worker = {
        "index": 0,
        "examples": 50,
        "examples_per_s": 10.0,
        "loss": 0.5,
        "skipped_batches": 2,
        "skipped_messages": 5,
        "late_files": 1,
        "missing_values": 9,
        "hook_errors": 4,
        "auc": 0.7,
    }
    first = {"time_s": 12.5, "run_id": "r1", "step": 10, "workers": [worker]}
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        first,
        {**first, "step": 20, "results": {"auc": 0.8, "calibration": None}},
    ]


def test_a_worker_that_a_new_controller_has_not_heard_has_no_figures(tmp_path):
    """The journal knows its place in the input; a line said that it had trained nothing."""
    silent = status(10)
    silent.members[1].global_step = 0
    silent.members[1].loss = 0.0
    RunRecord(tmp_path, print).add(silent)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["workers"] == []


def test_the_settings_of_the_run_are_all_there(tmp_path):
    RunRecord(tmp_path, print).write_settings(RunnerConfig(model_dir="x", num_workers=3))
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["num_workers"] == 3
    assert settings["task"] == "clicks"


@pytest.mark.parametrize("phase", ["forming", "running"])
def test_settings_are_there_before_a_first_checkpoint_can_be(tmp_path, phase):
    record = RunRecord(tmp_path, print)
    record.take(seen(phase=phase), RunnerConfig(num_ps=7))
    assert json.loads((tmp_path / "settings.json").read_text())["num_ps"] == 7
    assert (tmp_path / "task.json").is_file()


REFUSED = {"phase": "finished", "outcome": "failed"}


@pytest.mark.parametrize("now", [{"phase": "forming"}, {"phase": "initializing"}, REFUSED])
def test_until_a_job_is_accepted_the_files_stay_those_of_the_model_that_is_there(tmp_path, now):
    RunRecord(tmp_path, print).write_settings(RunnerConfig(num_ps=7))
    record = RunRecord(tmp_path, print)
    before = [(tmp_path / name).read_bytes() for name in ("settings.json", "task.json")]

    there = {"last_checkpoint": "/m/model.ckpt-40"}
    other = RunnerConfig(num_ps=2, task="my_tasks:other")
    record.take(seen(**there, **now), other)
    after = [(tmp_path / name).read_bytes() for name in ("settings.json", "task.json")]
    assert after == before
    assert not record.has_settings

    record.take(seen(**there, phase="running"), other)
    assert json.loads((tmp_path / "settings.json").read_text())["task"] == "my_tasks:other"
    assert record.has_settings


@pytest.mark.parametrize(
    "now",
    [
        {"outcome": "succeeded"},
        {"outcome": "failed", "last_save": LastSave(2.0, 0.1, 40, "/m/model.ckpt-40", "")},
    ],
)
def test_a_job_that_nobody_saw_run_was_accepted_all_the_same(tmp_path, now):
    record = RunRecord(tmp_path, print)
    there = {"last_checkpoint": "/m/model.ckpt-40"}
    record.take(seen(phase="finished", **there, **now), RunnerConfig())
    assert record.has_settings


def test_a_file_that_cannot_be_written_is_said_once_and_ends_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    said = []
    record = RunRecord(tmp_path, said.append)
    record.add(status(1))
    record.add(status(2))
    assert len(said) == 1
    assert "metrics.jsonl cannot be written" in said[0]
