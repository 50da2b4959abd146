"""Which task a replica predicts with, while its file comes, changes and goes."""

import os

import pytest

from megalith.errors import UnknownTask
from megalith.replica.predicting import task_file
from megalith.replica.predicting.task_file import TaskFile


def write(directory):
    directory.mkdir(exist_ok=True)
    task_file.write(directory, "support.liked_task:LikedTask", {})
    return directory / task_file.NAME


def test_a_task_stays_when_its_file_goes_away(tmp_path):
    """An export removes the folder of an older version, which a replica still serves."""
    path = write(tmp_path / "1")
    file = TaskFile(lambda: path)
    loaded = file.task()
    os.remove(path)
    assert file.task() is loaded
    write(tmp_path / "1")
    assert file.task() is not loaded


def test_another_file_that_is_missing_is_told(tmp_path):
    where = [write(tmp_path / "1")]
    file = TaskFile(lambda: where[0])
    file.task()
    where[0] = tmp_path / "2" / task_file.NAME
    with pytest.raises(UnknownTask, match="cannot be read"):
        file.task()
