"""`megalith train ctr`: what it shows and what it tells the workers, before anything is started."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from megalith.cli.ctr import CtrJob, prepared
from megalith.errors import BadData
from megalith.runner.config import RunnerConfig
from megalith.tasks.ctr_options import CtrOptions
from megalith.worker.task import load_task


@pytest.fixture
def files(tmp_path):
    table = pa.table(
        {
            "ts": np.arange(100),
            "user": ["ann", "bob"] * 50,
            "item": np.arange(100) % 7,
            "history": [[1, 2]] * 100,
            "price": np.linspace(0, 9, 100),
            "click": [0, 1] * 50,
        }
    )
    pq.write_table(table, tmp_path / "day1.parquet", row_group_size=40)
    pq.write_table(table, tmp_path / "day2.parquet")
    return tmp_path


def prepare(files, data="day1.parquet", **options):
    values = {
        "data": str(files / data),
        "label": "click",
        "features": "user,item",
        "lists": "history:item",
        "dense": "price",
        "time": "ts",
        **options,
    }
    job = RunnerConfig(model_dir=str(files / "model"), num_workers=3, batch_size=16)
    console = Console(file=io.StringIO(), width=100)
    config = prepared(CtrJob(ctr=CtrOptions(**values), job=job), console)
    return config, console.file.getvalue()


def test_columns_and_types_are_shown_before_anything_starts(files):
    _, shown = prepare(files, eval_data=str(files / "day2.parquet"))
    assert "day1.parquet: 1 files, 100 rows in 3 blocks, counted in" in shown
    assert "day2.parquet: 1 files, 100 rows in 1 blocks, counted in" in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    for line in (
        "click int64 label",
        "user string ids",
        "history list<element: int64> list of ids, rows of item",
        "price double number",
        "ts int64 time of the rows' last update",
    ):
        assert line in lines
    assert "rows do not expire; --expire-days 30" in shown


def test_what_workers_are_told_is_a_task(files):
    config, _ = prepare(files, model="fm")
    told = json.loads(config.task_options)
    assert config.task == "ctr"
    assert told["num_tracks"] == 3
    task = load_task(config.task, {"batch_size": 16, "num_examples": 0, "seed": 1, **told})
    assert task.num_batches() == 8  # 40, 40 and 20 rows, of a track each


def test_other_files_workers_or_batches_are_an_input_of_another_name(files):
    name = prepare(files)[0].input_name
    assert prepare(files)[0].input_name == name
    assert prepare(files, data="day2.parquet")[0].input_name != name


def test_a_column_that_is_not_there_is_refused_before_anything_starts(files):
    with pytest.raises(BadData, match=r"day1\.parquet has no column city; it has ts, user, item"):
        prepare(files, features="user,item,city")
    with pytest.raises(BadData, match=r"nothing\.csv: there is no such file"):
        prepare(files, eval_data="nothing.csv")


def test_values_that_are_not_what_they_are_used_as_are_refused_before_anything_starts(files):
    with pytest.raises(BadData, match=r"day1\.parquet, row group 0, column item: .* outside 0..1"):
        prepare(files, label="item", features="user", lists="")
    with pytest.raises(BadData, match=r"day1\.parquet, row group 0, column price: ids are made of"):
        prepare(files, features="user,item,price")
    with pytest.raises(BadData, match=r"day2\.parquet, row group 0, column history: .* divide"):
        prepare(files, eval_data=str(files / "day2.parquet"), slice_by="history")
