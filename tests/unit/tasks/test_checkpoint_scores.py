import json

import numpy as np
import pytest

from megalith.checkpoint.directory import listing
from megalith.errors import CheckpointNotFound, InvalidRequest, UnknownTable
from megalith.tasks.checkpoint_scores import Score, ScoreFile, follow, score
from support import checkpoints
from support.checkpoints import ITEM, USER


class FakeTime:
    """A clock that only a sleep moves; `events` happen when it gets to their time."""

    def __init__(self):
        self.now = 0.0
        self.events = {}

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for at in sorted(each for each in self.events if each <= self.now):
            self.events.pop(at)()


def save(model_dir, step):
    stores = checkpoints.stores_with([(ITEM, np.arange(5), np.ones((5, 3), np.float32), 7)])
    return checkpoints.write(stores, model_dir, step)


def followed(model_dir, time, done=(), timeout_s=100.0):
    waits = []
    found = follow(
        model_dir, set(done), timeout_s, lambda: waits.append(time.now), time.clock, time.sleep
    )
    return [path.name for path in found], waits


def test_each_checkpoint_comes_once_in_the_order_in_which_it_was_saved(tmp_path):
    save(tmp_path, 30)
    save(tmp_path, 200)
    time = FakeTime()
    time.events = {
        50: lambda: save(tmp_path, 210),
        120: lambda: (save(tmp_path, 1000), save(tmp_path, 1001)),
    }
    names, waits = followed(tmp_path, time)
    assert names == [
        "model.ckpt-30",
        "model.ckpt-200",
        "model.ckpt-210",
        "model.ckpt-1000",
        "model.ckpt-1001",
    ]
    assert waits == [0.0, 50.0, 120.0]
    assert time.now == 220.0  # 100 s after the last one


def test_those_that_are_done_are_left_out_and_no_timeout_means_no_wait(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    time = FakeTime()
    assert followed(tmp_path, time, done=["model.ckpt-1"], timeout_s=0) == (["model.ckpt-2"], [])
    assert time.now == 0.0
    assert followed(tmp_path / "not there yet", time, timeout_s=3.0) == ([], [0.0])


def test_a_new_checkpoint_of_a_step_that_was_scored_is_scored(tmp_path):
    save(tmp_path, 7)
    save(tmp_path, 7)
    names, _ = followed(tmp_path, FakeTime(), timeout_s=0)
    assert names == ["model.ckpt-7", "model.ckpt-r1-7"]


class SumTask:
    """Its figure is the sum of some rows."""

    tables = (ITEM,)
    variables = ()

    def evaluate(self, read):
        rows, _ = read({"item": np.arange(3)}, [])
        return {"sum": float(rows["item"].sum())}


def test_a_score_is_what_the_task_makes_of_the_checkpoint(tmp_path):
    path = save(tmp_path, 40)
    found = score(SumTask(), path, "abc")
    assert (found.checkpoint, found.step, found.rows) == ("model.ckpt-40", 40, 5)
    assert found.results == {"sum": 9.0}


def test_a_checkpoint_of_another_task_or_no_data_is_refused(tmp_path):
    path = save(tmp_path, 40)
    task = SumTask()
    task.tables = (USER,)
    with pytest.raises(UnknownTable, match="another task"):
        score(task, path, "abc")

    task = SumTask()
    task.evaluate = lambda read: {}
    with pytest.raises(InvalidRequest, match="evaluates nothing"):
        score(task, path, "abc")
    with pytest.raises(CheckpointNotFound):
        score(SumTask(), tmp_path / "model.ckpt-41", "abc")


def test_a_file_tells_evaluations_apart_and_passes_over_a_line_that_was_cut_off(tmp_path):
    file = ScoreFile(tmp_path / "eval.jsonl")
    assert file.names("abc") == set()
    line = Score("model.ckpt-1", 1, 0, 5, "abc", 1.5, 0.1, {"auc": 0.5})
    file.add(line)
    file.add(Score("model.ckpt-2", 2, 0, 5, "other", 1.5, 0.1, {"auc": float("nan")}))
    with file.path.open("a") as opened:
        opened.write('{"checkpoint": "model.ckpt-3", "sett')
    assert file.names("abc") == {"model.ckpt-1"}
    first, second, _ = file.path.read_text().splitlines()
    assert json.loads(first)["results"] == {"auc": 0.5}
    assert json.loads(second)["results"] == {"auc": None}

    file.add(Score("model.ckpt-4", 4, 0, 5, "abc", 1.5, 0.1, {"auc": 0.5}))
    assert file.names("abc") == {"model.ckpt-1", "model.ckpt-4"}


def test_a_list_that_names_no_checkpoint_yet_gives_none(tmp_path):
    (tmp_path / "checkpoint").write_text(listing.FIRST_IS_PUBLISHED)
    assert followed(tmp_path, FakeTime(), timeout_s=2.0) == ([], [0.0])
