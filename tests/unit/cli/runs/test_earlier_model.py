"""What is said before a model goes on that is one of another task or of other columns."""

import json

import pytest

from megalith.cli.runs.earlier_model import other_than
from megalith.cli.runs.run_record import RunRecord
from megalith.collective.ranks import Ranks
from megalith.local import saving
from megalith.local.model import LocalModel
from megalith.runner.config import RunnerConfig


def settings(model_dir, task, restore_ckpt="", **options):
    told = {"data": "d.parquet", "label": "click", "features": "user", "dense": "", **options}
    return RunnerConfig(
        model_dir=str(model_dir),
        task=task,
        restore_ckpt=restore_ckpt,
        task_options=json.dumps(told if task == "ctr" else options),
    )


def trained(model_dir, task, **options):
    """As if a job of these settings had saved a checkpoint."""
    RunRecord(model_dir, pytest.fail).write_settings(settings(model_dir, task, **options))
    saving.save(LocalModel(1), model_dir, 1, b"", Ranks())


def test_a_model_of_another_task_is_named(tmp_path):
    trained(tmp_path, "here/my_task.py:MyTask")
    said = other_than(settings(tmp_path, "clicks"))
    assert said == (
        f"{tmp_path} has a model of the task my_task.py:MyTask; clicks goes on from it; "
        "for a model of its own use another --model-dir"
    )


@pytest.mark.parametrize("task", ["clicks", "here/my_task.py:MyTask", "ctr"])
def test_the_same_task_goes_on_without_a_word(tmp_path, task):
    trained(tmp_path, task)
    assert other_than(settings(tmp_path, task)) == ""


def test_a_file_of_a_task_may_move(tmp_path):
    trained(tmp_path, "here/my_task.py:MyTask")
    assert other_than(settings(tmp_path, "there/my_task.py:MyTask")) == ""


def test_options_that_make_another_model_of_ctr_are_shown_as_they_were(tmp_path):
    trained(tmp_path, "ctr", features="user,item")
    said = other_than(settings(tmp_path, "ctr", features="city", dense="price"))
    assert f"{tmp_path} has a model that was trained with --features=user,item --dense=''" in said


def test_the_files_of_the_next_day_are_no_other_model(tmp_path):
    trained(tmp_path, "ctr")
    assert other_than(settings(tmp_path, "ctr", data="day2.parquet", label="like")) == ""


def test_where_nothing_was_saved_nothing_goes_on(tmp_path):
    assert other_than(settings(tmp_path, "clicks")) == ""
    RunRecord(tmp_path, pytest.fail).write_settings(settings(tmp_path, "ctr"))
    assert other_than(settings(tmp_path, "clicks")) == ""


def test_a_checkpoint_that_is_named_is_not_that_of_the_directory(tmp_path):
    trained(tmp_path, "ctr")
    assert other_than(settings(tmp_path, "clicks", restore_ckpt="elsewhere")) == ""
