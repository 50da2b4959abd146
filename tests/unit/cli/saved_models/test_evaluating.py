"""`megalith eval` on checkpoints that were written here, against figures worked out by hand."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import megalith.client as mg
from megalith.cli.runs.recorded_task import recorded_task
from megalith.cli.runs.run_record import RunRecord
from megalith.cli.saved_models.evaluating import _ScoreTable, eval_command
from megalith.local import local_train
from megalith.runner.config import RunnerConfig
from megalith.tasks.auc import auc
from megalith.tasks.checkpoint_scores import Score
from megalith.tasks.ctr import make_task
from support import checkpoints
from support.liked_task import LikedTask

ROWS = 400


@pytest.fixture
def trained(tmp_path):
    """A model directory with checkpoints of a linear model, and the data to score on."""
    rng = np.random.default_rng(1)
    items = rng.integers(30, size=ROWS)
    clicks = rng.integers(2, size=ROWS)
    half = np.where(np.arange(ROWS) % 2, "odd", "even")
    table = pa.table({"click": clicks, "item": items, "half": half})
    held_out = tmp_path / "held_out.parquet"
    pq.write_table(table, held_out)

    options = {
        "data": "gone/*.parquet",  # an evaluation needs no data to train on
        "eval_data": str(held_out),
        "label": "click",
        "features": "item",
        "model": "lr",
    }
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    config = RunnerConfig(model_dir=str(model_dir), task="ctr", task_options=json.dumps(options))
    RunRecord(model_dir, print).write_settings(config)

    task = make_task(batch_size=8, num_examples=0, seed=1, scores_only=True, **options)
    weights = {}
    for step in (10, 20, 30):
        values = rng.normal(0, 1, (30, 1)).astype(np.float32)
        ids = mg.hash_ids(np.arange(30))
        variables = {"bias": np.array([float(step)], np.float32)}
        stores = checkpoints.stores_with([(task.tables[0], ids, values, 7)], variables)
        checkpoints.write(stores, model_dir, step)
        weights[step] = values[:, 0]

    expected = {step: auc(clicks, weights[step][items]) for step in weights}
    return model_dir, expected, (clicks, items, half, weights)


def run(*args):
    with pytest.raises(SystemExit) as exit_:
        eval_command.main([str(arg) for arg in args])
    return exit_.value.code


def scores(model_dir):
    lines = (model_dir / "eval.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_all_checkpoints_are_scored_in_order_and_once(trained, capsys):
    model_dir, expected, _ = trained
    assert run(model_dir, "--timeout-s", 0) == 0
    found = scores(model_dir)
    assert [line["step"] for line in found] == [10, 20, 30]
    for line in found:
        assert line["results"]["auc"] == pytest.approx(expected[line["step"]], abs=1e-6)

    printed = capsys.readouterr().out
    for step, value in expected.items():
        assert f"model.ckpt-{step}" in printed
        assert f"{value:.5f}" in printed

    assert run(model_dir, "--timeout-s", 0) == 0
    assert "3 of them already" in capsys.readouterr().err
    assert len(scores(model_dir)) == 3
    assert run(model_dir, "--timeout-s", 0, "--again") == 0
    assert len(scores(model_dir)) == 6


def test_it_ends_at_the_last_step(trained, capsys):
    model_dir, *_ = trained
    assert run(model_dir, "--max-steps", 15) == 0
    assert [line["step"] for line in scores(model_dir)] == [10, 20]
    assert "--max-steps is 15" in capsys.readouterr().err


def test_named_ones_are_scored_in_the_order_given_with_groups(trained, capsys):
    model_dir, _, (clicks, items, half, weights) = trained
    names = ("model.ckpt-30", "model.ckpt-10", "model.ckpt-30")
    named = [word for name in names for word in ("--checkpoint", name)]
    assert run(model_dir, *named, "--group-by", "half") == 0
    found = scores(model_dir)
    assert [line["step"] for line in found] == [30, 10]
    is_odd = half == "odd"
    expected = auc(clicks[is_odd], weights[30][items][is_odd])
    assert found[0]["results"]["auc half=odd"] == pytest.approx(expected, abs=1e-6)
    assert "auc half=odd" in capsys.readouterr().out


def test_the_old_name_of_group_by_is_refused_with_the_new_one(trained, capsys):
    model_dir, *_ = trained
    with pytest.raises(SystemExit) as ended:
        eval_command.main([str(model_dir), "--slice-by", "half"])

    assert ended.value.code == 2
    assert "--slice-by is gone; write --group-by half" in capsys.readouterr().err


def test_other_data_is_another_evaluation(trained, tmp_path):
    model_dir, *_ = trained
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"click": [0, 1], "item": [1, 2]}), other)
    assert run(model_dir, "--timeout-s", 0) == 0
    assert run(model_dir, "--timeout-s", 0, "--eval-data", other) == 0
    settings = [line["settings"] for line in scores(model_dir)]
    assert len(settings) == 6
    assert len(set(settings)) == 2


def with_options(model_dir, **changes):
    """As if the training had gone on with other options."""
    path = model_dir / "settings.json"
    recorded = json.loads(path.read_text())
    options = json.loads(recorded["task_options"]) | changes
    recorded["task_options"] = json.dumps(options)
    recorded["batch_size"] += 1
    path.write_text(json.dumps(recorded))


def test_other_data_to_train_on_is_no_other_evaluation(trained, capsys):
    """Each day of training scored all earlier checkpoints a second time."""
    model_dir, *_ = trained
    assert run(model_dir, "--timeout-s", 0) == 0

    changes = {"data": "day2.parquet", "index": "data-index-2.json", "epochs": 3, "rate": 0.5}
    with_options(model_dir, **changes)
    assert run(model_dir, "--timeout-s", 0) == 0
    assert "3 of them already" in capsys.readouterr().err
    assert len(scores(model_dir)) == 3

    with_options(model_dir, eval_index=str(model_dir / "data-index-of-other-files.json"))
    recorded = recorded_task(model_dir, {})
    assert recorded.score_digest != scores(model_dir)[0]["settings"]


def test_scores_of_early_versions_are_known(trained, capsys):
    model_dir, *_ = trained
    early = recorded_task(model_dir, {}).digest
    line = {"checkpoint": "model.ckpt-10", "settings": early}
    (model_dir / "eval.jsonl").write_text(json.dumps(line) + "\n")
    assert run(model_dir, "--timeout-s", 0) == 0
    assert [line["checkpoint"] for line in scores(model_dir)][1:] == [
        "model.ckpt-20",
        "model.ckpt-30",
    ]


def test_one_that_is_gone_is_skipped_and_a_damaged_one_is_an_error(trained, capsys):
    model_dir, *_ = trained
    shutil.rmtree(model_dir / "model.ckpt-10")
    (file, *_) = (model_dir / "model.ckpt-20").glob("table-*")
    file.write_bytes(b"nonsense")
    assert run(model_dir, "--timeout-s", 0) == 1
    said = capsys.readouterr().err
    assert "model.ckpt-10 no longer exists, skipping checkpoint" in said
    assert "model.ckpt-20 is damaged and left out" in said
    assert [line["step"] for line in scores(model_dir)] == [30]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["model", "--checkpoint", "model.ckpt-7"], "no checkpoint"),
        (["elsewhere"], "is no directory"),
        (["empty", "--timeout-s", 0], "settings.json is missing"),
    ],
)
def test_what_cannot_be_scored_is_one_line(trained, tmp_path, monkeypatch, capsys, args, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert run(*args) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_the_checkpoint_of_another_task_is_refused_by_what_it_lacks(trained, capsys):
    model_dir, *_ = trained
    other = local_train(LikedTask(), model_dir=model_dir.parent / "other", max_steps=3)
    other.checkpoint.rename(model_dir / "model.ckpt-3")
    assert run(model_dir, "--checkpoint", "model.ckpt-3") == 1
    said = capsys.readouterr().err
    assert "model.ckpt-3 has no table item, it has ['film', 'user']" in said
    assert said.count("\n") == 1


def test_the_settings_of_another_program_are_named(tmp_path, capsys):
    (tmp_path / "settings.json").write_text("[]")
    assert run(tmp_path, "--timeout-s", 0) == 1
    assert "settings.json has no settings of a run" in capsys.readouterr().err


def test_missing_values_are_counted_in_whole_numbers(capsys):
    figures = {"auc": 0.5, "missing_values": 7074.0}
    found = Score("model.ckpt-1", 1, 0, 2, "", 0.0, 0.0, figures)
    _ScoreTable().print(found)
    assert re.search(r" 0\.50000 +7,074\n", capsys.readouterr().out)
