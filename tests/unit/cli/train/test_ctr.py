"""`megalith train ctr`: what it shows and what it tells the workers, before anything is started."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from rich.console import Console

import megalith.client as mg
from megalith.cli.app import app
from megalith.cli.runs.run_record import RunRecord
from megalith.cli.train.ctr import CtrJob, prepared
from megalith.collective.ranks import Ranks
from megalith.errors import BadData, InvalidSetting
from megalith.local import saving
from megalith.local.model import LocalModel
from megalith.runner.config import RunnerConfig
from megalith.runtime.config.settings import refuse_removed
from megalith.runtime.task_loading import load_task
from megalith.tasks.ctr_options import CtrOptions, options_of
from megalith.worker.config import TaskSettings


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


def prepare(files, data="day1.parquet", params_override="", told=None, **options):
    """`told` are settings of the job, and `options` those of the model and its data."""
    values = {
        "data": str(files / data),
        "label": "click",
        "features": "user,item",
        "lists": "history:item",
        "dense": "price",
        "time": "ts",
        **options,
    }
    job = RunnerConfig(
        model_dir=str(files / "model"),
        num_workers=3,
        batch_size=16,
        params_override=params_override,
        **(told or {}),
    )
    console = Console(file=io.StringIO(), width=100)
    config = prepared(CtrJob(ctr=CtrOptions(**values), job=job), console)
    return config, console.file.getvalue()


def trained(files, config):
    """As if a job of these settings had saved a checkpoint."""
    model_dir = files / "model"
    RunRecord(model_dir, pytest.fail).write_settings(config)
    saving.save(LocalModel(1), model_dir, 1, b"", Ranks())


def test_the_next_day_has_ids_of_the_kinds_of_the_first(files):
    config, _ = prepare(files)
    trained(files, config)
    table = pq.read_table(files / "day2.parquet")
    for day in (2, 3):
        items = pa.array(["5"] * 100) if day == 3 else table.column("item")
        pq.write_table(table.set_column(2, "item", items), files / f"day{day}.parquet")

    told = json.loads(prepare(files, "day2.parquet")[0].task_options)
    assert told["kinds"] == {"user": "text", "item": "number", "history": "list of number"}
    with pytest.raises(BadData, match=r"day3.parquet: column item is text, and the model is trai"):
        prepare(files, "day3.parquet")
    with pytest.raises(BadData, match=r"day3.parquet: column item is text, and the model is trai"):
        prepare(files, "day2.parquet", eval_data=str(files / "day3.parquet"))


def test_text_that_looks_like_numbers_on_the_next_day_is_text(files):
    (files / "day1.csv").write_text("click,item\n0,5\n1,x5\n")
    (files / "day2.csv").write_text("click,item\n0,5\n1,6\n")
    options = {"features": "item", "lists": "", "dense": "", "time": ""}
    config, _ = prepare(files, "day1.csv", **options)
    trained(files, config)

    config, shown = prepare(files, "day2.csv", eval_data=str(files / "day2.csv"), **options)
    assert "item    string  ids" in shown
    task = load_task("ctr", TaskSettings(task="ctr", task_options=config.task_options).keywords())
    fields = task.batch(0).examples.ids["item"].values
    assert set(fields) == set(mg.hash_ids(["5", "6"]))


def test_columns_and_types_are_shown_before_anything_starts(files):
    _, shown = prepare(files, eval_data=str(files / "day2.parquet"))
    assert "day1.parquet: 1 file, 100 rows in 3 blocks, counted in" in shown
    assert "day2.parquet: 1 file, 100 rows in 1 block, counted in" in shown
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


def test_data_of_params_override_is_what_is_counted_and_read(files):
    override = json.dumps({"data": str(files / "day2.parquet"), "model": "fm"})
    config, shown = prepare(files, params_override=override)
    assert "day2.parquet: 1 file, 100 rows in 1 block" in shown
    assert "day1.parquet" not in shown
    told = json.loads(config.task_options)
    assert told["model"] == "fm"
    assert "day2.parquet" in Path(told["index"]).read_text()


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


@pytest.mark.parametrize("sharding", ["static", "dynamic"])
def test_rows_in_another_order_are_an_input_of_another_name(files, sharding):
    """The cursors say nothing of it, so it is read from its start, and the job says so."""

    def name(shuffle, seed):
        told = {"sharding": sharding, "seed": seed}
        return prepare(files, told=told, shuffle=shuffle)[0].input_name

    assert len({name("no", 1), name("yes", 1), name("yes", 2)}) == 3
    assert name("no", 2) == name("no", 1)  # the seed decides nothing else of the input


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
        prepare(files, eval_data=str(files / "day2.parquet"), group_by="history")


def test_groups_without_data_to_evaluate_are_said_to_have_no_effect(files):
    said = "--group-by has no effect, because there is no --eval-data"
    assert said in prepare(files, group_by="user")[1]
    evaluated = {"eval_data": str(files / "day2.parquet")}
    assert said not in prepare(files, group_by="user", **evaluated)[1]


def test_the_old_name_of_group_by_is_refused_with_the_new_one():
    with pytest.raises(InvalidSetting, match="--slice-by is gone; write --group-by gender"):
        refuse_removed(CtrOptions, "", ["--data", "d", "--slice-by", "gender"], {})


def test_a_model_that_was_trained_with_the_old_name_of_group_by_is_still_read():
    told = {"data": "day1.parquet", "label": "click", "features": "user", "slice_by": "gender"}
    assert options_of(told).group_by == "gender"
    assert options_of(told | {"group_by": "age"}).group_by == "age"


@pytest.mark.parametrize("option", ["--task", "--task-options"])
def test_what_the_command_decides_itself_is_no_option_of_it(option):
    """It trains a click model, whatever else could be trained."""
    runner = CliRunner()
    shown = runner.invoke(app, ["train", "ctr", "--help"], prog_name="megalith").stdout
    assert f"{option} " not in shown
    assert "--batch-size " in shown

    done = runner.invoke(app, ["train", "ctr", option, "clicks"], prog_name="megalith")
    assert (done.exit_code, done.stderr) == (2, f"megalith train ctr: {option} is no option\n")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("user", pa.nulls(100)),
        ("user", pa.nulls(100, pa.string())),
        ("history", pa.nulls(100, pa.list_(pa.int64()))),
        ("price", pa.nulls(100, pa.float64())),
    ],
)
def test_a_column_without_any_value_in_a_file_is_named(files, column, values):
    """Trained as missing without a word, it gave a model that lacked a column."""
    table = pq.read_table(files / "day2.parquet")
    number = table.schema.get_field_index(column)
    empty = table.set_column(number, column, values)
    pq.write_table(empty, files / "day3.parquet", row_group_size=40)

    _, shown = prepare(files, "day3.parquet")
    said = f"column {column} has no value in any row of {files}/day3.parquet"
    assert said in shown.replace("\n", "")

    _, shown = prepare(files, "day*.parquet", eval_data=str(files / "day3.parquet"))
    assert shown.replace("\n", "").count(said) == 2

    pq.write_table(empty, files / "day4.parquet")
    _, shown = prepare(files, "day*.parquet")
    assert f"column {column} has no value in any row of 2 of 4 files, the first is" in shown


def test_a_column_with_one_value_is_not_said_to_have_none(files):
    table = pq.read_table(files / "day2.parquet")
    users = pa.array([None] * 99 + ["ann"])
    pq.write_table(table.set_column(1, "user", users), files / "day3.parquet", row_group_size=40)
    assert "has no value" not in prepare(files, "day3.parquet")[1]


def test_a_column_of_text_without_any_value_is_named(files):
    (files / "day1.csv").write_text("click,item,user\n0,5,\n1,6,\n")
    options = {"features": "item,user", "lists": "", "dense": "", "time": ""}
    _, shown = prepare(files, "day1.csv", **options)
    assert f"column user has no value in any row of {files}/day1.csv" in shown.replace("\n", "")
    assert "column item has no value" not in shown


@pytest.mark.parametrize(
    ("times", "time", "is_said"),
    [
        (np.arange(100), "ts", True),  # a column of seconds that somebody looked at a page
        (np.full(100, 1_700_000_000), "ts:ms", True),
        (np.full(100, 1_700_000_000), "ts", False),
        (np.full(100, 1_700_000_000_000), "ts:ms", False),
        (np.arange(100).astype("datetime64[s]"), "ts", False),
    ],
)
def test_times_before_1990_are_doubted_at_the_start(files, times, time, is_said):
    table = pq.read_table(files / "day1.parquet")
    pq.write_table(table.set_column(0, "ts", pa.array(times)), files / "day1.parquet")
    _, shown = prepare(files, time=time)
    said = " ".join(shown.split())
    assert ("--time ts: its first times lie before 1990, from 1970-01-" in said) == is_said
    assert ("for example --time ts:ms" in said) == is_said
