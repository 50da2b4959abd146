"""`megalith train --sync full` on one rank: what it prints, saves and refuses."""

import logging
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megalith.cli.app import app
from megalith.cli.train import sync_job
from megalith.controller.ownership import hold
from megalith.wire.reports import InputCounts
from megalith.worker.numbered_input import NumberedInput

TASK = "support.liked_task:LikedTask"
FULL = ("train", TASK, "--sync", "full", "--num-examples", "640", "--batch-size", "64")


@pytest.fixture(autouse=True)
def earlier_logging():
    """A rank logs to the terminal of its process: here to what one test has captured."""
    root = logging.getLogger()
    handlers = [*root.handlers]
    level = root.level

    yield
    for handler in [*root.handlers]:
        if handler not in handlers:
            root.removeHandler(handler)

    root.setLevel(level)


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        app.main([str(word) for word in words], prog_name="megalith")
    return ended.value.code, capsys.readouterr()


def test_one_rank_trains_saves_and_goes_on(tmp_path, capsys):
    status, said = run(capsys, *FULL, "--model-dir", tmp_path, "--max-steps", "4")
    assert status == 0, said.err
    assert "training on 1 rank (one)" in said.out
    assert (tmp_path / "model.ckpt-4").is_dir()
    assert (tmp_path / "settings.json").is_file()

    status, said = run(capsys, *FULL, "--model-dir", tmp_path)
    assert status == 0, said.err
    assert "model.ckpt-10" in said.out
    assert "no batch was trained" not in said.out

    status, said = run(capsys, *FULL, "--model-dir", tmp_path)
    assert status == 0, said.err
    assert "no batch was trained: the input was at its end" in said.out
    *_, checkpoint, last = said.out.splitlines()
    assert last == checkpoint.replace("checkpoint", "nothing new since", 1)


def test_the_sizes_of_tables_in_the_log_are_those_of_all_ranks_alone(tmp_path, capsys):
    """A hook of rank 0 said beside them how many it holds itself."""
    status, said = run(capsys, *FULL, "--model-dir", tmp_path, "--figures-every-s", "0.001")
    assert status == 0, said.err
    lines = [line for line in said.err.splitlines() if "table=" in line]
    assert lines
    assert all("megalith.sync.operator" in line for line in lines), lines


def test_the_figures_have_the_names_that_they_have_in_a_cluster(tmp_path, capsys):
    words = ("train", "clicks", "--sync", "full", "--num-examples", "640", "--batch-size", "64")
    status, said = run(capsys, *words, "--model-dir", tmp_path)
    assert status == 0, said.err
    for name in ("AUC", "best reachable AUC", "difference"):
        assert f"│ {name} " in said.out


def test_ranks_outside_their_hours_say_so_instead_of_an_end_of_the_input(tmp_path, capsys):
    status, said = run(capsys, *FULL, "--model-dir", tmp_path, "--train-window", "00:00-00:01")
    assert status == 0, said.err
    reason = "these are not the hours of --train-window 00:00-00:01 (UTC)"
    assert f"training ended early: {reason}" in said.out
    assert "no batch was trained" not in said.out


def test_what_the_input_of_a_rank_has_left_out_is_in_the_summary(tmp_path, capsys, monkeypatch):
    left_out = InputCounts(skipped_messages=1200, late_files=3)
    monkeypatch.setattr(NumberedInput, "left_out", lambda self: left_out)
    status, said = run(capsys, *FULL, "--model-dir", tmp_path)
    assert status == 0, said.err
    assert re.search(r"messages left out +│ 1,200 ", said.out)
    assert re.search(r"files left out +│ 3 ", said.out)


def test_missing_values_of_the_training_are_in_the_summary(tmp_path, capsys):
    table = pa.table({"click": [0, 1] * 50, "item": [*range(97), None, None, None]})
    pq.write_table(table, tmp_path / "a.parquet")
    options = ["--label", "click", "--features", "item", "--model", "lr", "--batch-size", "16"]
    status, said = run(
        capsys,
        "train",
        "ctr",
        "--sync",
        "full",
        "--data",
        tmp_path / "a.parquet",
        *options,
        "--model-dir",
        tmp_path / "model",
    )
    assert status == 0, said.err
    assert re.search(r"missing values +│ 3 ", said.out)


def test_a_first_step_that_takes_long_is_explained(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sync_job, "_SILENT_S", 0.0)
    status, said = run(capsys, *FULL, "--model-dir", tmp_path)
    assert status == 0, said.err
    assert "the first step is still to come" in said.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-ps", "4"], "--num-ps=4: makes no sense with --sync full"),
        (["--staleness", "1"], "--staleness=1: makes no sense with --sync full"),
        (["--set", "ps.max_blob_bytes=5"], "with --sync full there is only task.NAME=VALUE"),
        (["--collective", "foo"], "--collective=foo: expected auto, one, mpi"),
        (["--sync-timeout-s", "0"], "--sync-timeout-s=0.0: must be above 0"),
    ],
)
def test_settings_of_a_cluster_are_refused(tmp_path, capsys, words, message):
    status, said = run(capsys, *FULL, "--model-dir", tmp_path, *words)
    assert status == 2
    assert message in said.err
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_task_is_one_line_and_status_1(tmp_path, capsys):
    task = "support.sync_tasks:NotFinite"
    words = ["train", task, "--sync", "full", "--num-examples", "640", "--batch-size", "64"]
    status, said = run(capsys, *words, "--model-dir", tmp_path)
    assert status == 1
    assert "megalith: rank 0: the loss is nan" in said.err
    assert "step 3, batch 3" in said.err


def test_a_directory_of_summaries_that_cannot_be_written_is_an_error_before_any_step(
    tmp_path, capsys
):
    pytest.importorskip("tensorboard")
    logs = tmp_path / "logs"
    logs.write_text("a file")
    words = ["--model-dir", tmp_path / "model", "--tensorboard", logs]
    status, said = run(capsys, *FULL, *words)
    assert status == 1
    assert f"megalith: rank 0: --tensorboard={logs}: summaries cannot be written" in said.err
    assert not (tmp_path / "model").exists()


def test_hooks_that_raise_while_training_goes_on_are_named_and_counted_in_the_summary(
    tmp_path, capsys
):
    hooks = tmp_path / "hooks_of_mine.py"
    hooks.write_text(
        "from megalith.worker.hooks import Hook\n"
        "class Clumsy(Hook):\n"
        "    def after_step(self, worker, done):\n"
        "        raise RuntimeError('the hook is clumsy')\n"
    )
    words = ["--hooks", f"{hooks}:Clumsy", "--on-hook-error", "go-on"]
    status, said = run(capsys, *FULL, "--model-dir", tmp_path / "model", *words)
    assert status == 0, said.err
    assert re.search(r"errors of hooks +│ 10 ", said.out)
    named = "rank 0: the hook Clumsy.after_step raised RuntimeError: the hook is clumsy"
    assert said.out.count(named) == 1


def test_what_the_input_has_passed_over_is_counted_in_the_summary(tmp_path, capsys):
    words = [word.replace("liked_task:LikedTask", "sync_tasks:LeavesOut") for word in FULL]
    status, said = run(capsys, *words, "--model-dir", tmp_path)
    assert status == 0, said.err
    assert re.search(r"messages left out +│ 3 ", said.out)
    assert re.search(r"files left out +│ 2 ", said.out)
    assert "batches left out" not in said.out


def test_the_settings_of_a_job_that_uses_the_directory_stay(tmp_path, capsys):
    (tmp_path / "settings.json").write_text("those of the other job")
    with hold(tmp_path):
        status, said = run(capsys, *FULL, "--model-dir", tmp_path)

    assert status == 1
    assert f"--model-dir={tmp_path}" in said.err
    assert (tmp_path / "settings.json").read_text() == "those of the other job"
    assert not (tmp_path / "task.json").exists()


def test_a_start_that_the_model_refuses_leaves_its_settings(tmp_path, capsys):
    clicks = tmp_path / "clicks.csv"
    rows = [f"{number % 9},{number % 5},{number % 7},{number % 2}" for number in range(400)]
    clicks.write_text("\n".join(["user,price,km,click", *rows, ""]))
    model = tmp_path / "model"
    words = ("train", "ctr", "--sync", "full", "--data", clicks, "--label", "click")
    ctr = (*words, "--features", "user", "--model-dir", model)

    status, said = run(capsys, *ctr, "--dense", "price,km")
    assert status == 0, said.err
    before = [(model / name).read_text() for name in ("settings.json", "task.json")]
    status, said = run(capsys, *ctr, "--dense", "km")
    assert status == 1
    assert "--dense=price,km" in said.out
    assert [(model / name).read_text() for name in ("settings.json", "task.json")] == before


def test_a_cluster_is_not_kept_up_for_ranks(capsys):
    status, said = run(capsys, "up", "--sync", "full")
    assert status == 2
    assert "--sync=full: there is no cluster to keep up" in said.err
