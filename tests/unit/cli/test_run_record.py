import json
from types import SimpleNamespace

from megalith.cli.run_record import RunRecord
from megalith.runner.config import RunnerConfig


def status(step, results=None):
    worker = SimpleNamespace(
        role="worker", index=0, examples=50, examples_per_s=10.0, loss=0.5, metrics={"auc": 0.7}
    )
    ps = SimpleNamespace(role="ps", index=0)
    return SimpleNamespace(
        run_id="r1", global_step=step, members=(ps, worker), results=results or {}
    )


def test_figures_are_added_a_line_at_a_time_and_results_at_the_end(tmp_path):
    record = RunRecord(tmp_path, print, wall_clock=lambda: 12.5)
    record.add(status(10))
    record.add(status(20, {"auc": 0.8}))
    worker = {"index": 0, "examples": 50, "examples_per_s": 10.0, "loss": 0.5, "auc": 0.7}
    first = {"time_s": 12.5, "run_id": "r1", "step": 10, "workers": [worker]}
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        first,
        {**first, "step": 20, "results": {"auc": 0.8}},
    ]


def test_the_settings_of_the_run_are_all_there(tmp_path):
    RunRecord(tmp_path, print).write_settings(RunnerConfig(model_dir="x", num_workers=3))
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["num_workers"] == 3
    assert settings["task"] == "clicks"


def test_a_file_that_cannot_be_written_is_said_once_and_ends_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    said = []
    record = RunRecord(tmp_path, said.append)
    record.add(status(1))
    record.add(status(2))
    assert len(said) == 1
    assert "metrics.jsonl cannot be written" in said[0]
