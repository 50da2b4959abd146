"""`megalith predict` on models that were trained here, against predictions worked out by hand."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import megalith.client as mg
from megalith.cli.app import app
from megalith.cli.runs.run_record import RunRecord
from megalith.local import local_train
from megalith.local.model import LocalModel
from megalith.runner.config import RunnerConfig
from megalith.tasks.ctr import make_task
from support.full_disk import files_of_at_most
from support.liked_task import LikedTask


def record(model_dir, task, **options):
    config = RunnerConfig(model_dir=str(model_dir), task=task, task_options=json.dumps(options))
    RunRecord(model_dir, print).write_settings(config)


def run(*words):
    return CliRunner().invoke(app, ["predict", *map(str, words)], prog_name="megalith")


@pytest.fixture
def clicks(tmp_path):
    """A linear model that was trained on a file, and another file without labels."""
    rng = np.random.default_rng(1)
    items = rng.integers(30, size=500)
    clicked = rng.random(500) < items / 30
    pq.write_table(pa.table({"item": items, "click": clicked}), tmp_path / "train.parquet")
    names = [f"row {number}" for number in range(70)]
    new = pa.table({"name": names, "item": np.arange(70) % 35})
    pq.write_table(new, tmp_path / "new.parquet", row_group_size=30)

    options = {
        "data": str(tmp_path / "train.parquet"),
        "label": "click",
        "features": "item",
        "model": "lr",
        "epochs": 20,
    }
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    record(model_dir, "ctr", **options)
    task = make_task(batch_size=50, num_examples=0, seed=1, **options)
    return tmp_path, local_train(task, model_dir=model_dir)


def test_rows_of_files_without_labels_are_predicted_in_their_order(clicks):
    folder, trained = clicks
    out = folder / "out.parquet"
    data = folder / "new.parquet"
    done = run(folder / "model", "--data", data, "--fields", "name,item", "--out", out)
    assert done.exit_code == 0, done.output
    assert "70 predictions of model.ckpt-200 (step 200)" in done.output
    table = pq.read_table(out)
    assert table.column_names == ["name", "item", "prediction"]
    assert table["name"].to_pylist() == [f"row {number}" for number in range(70)]

    items = table["item"].to_numpy()
    rows, variables = trained.read({"item": mg.hash_ids(items)}, ["bias"])
    expected = 1 / (1 + np.exp(-(rows["item"][:, 0] + variables["bias"][0])))
    np.testing.assert_allclose(table["prediction"].to_numpy(), expected, rtol=1e-5)
    assert expected[29] > 0.6 > 0.4 > expected[0]


@pytest.mark.parametrize("kind", [pa.null(), pa.int64()])
def test_rows_to_predict_may_have_a_column_of_labels_that_are_not_known_yet(clicks, kind):
    folder, _ = clicks
    unknown = pa.table({"item": np.arange(70), "click": pa.nulls(70, kind)})
    pq.write_table(unknown, folder / "unknown.parquet")
    out = folder / "out.parquet"
    data = folder / "unknown.parquet"
    done = run(folder / "model", "--data", data, "--fields", "click,item", "--out", out)
    assert done.exit_code == 0, done.output
    table = pq.read_table(out)
    assert table.column_names == ["click", "item", "prediction"]
    assert table["click"].null_count == 70


def test_a_disk_that_is_full_is_one_line_and_leaves_no_file(clicks):
    folder, _ = clicks
    out = folder / "out.parquet"
    out.write_bytes(b"as it was")
    data = folder / "new.parquet"
    with files_of_at_most(100):
        done = run(folder / "model", "--data", data, "--out", out, "--overwrite")

    assert done.exit_code == 1
    assert done.output.startswith("megalith predict: [Errno 27] File too large: ")
    assert f"{out}.part" in done.output
    assert done.output.count("\n") == 1
    assert out.read_bytes() == b"as it was"
    assert [path for path in folder.iterdir() if path.name.startswith("out.")] == [out]


@pytest.fixture
def dated_clicks(tmp_path):
    """A model that was trained on two days, and a third day."""
    for day in (1, 2, 3):
        folder = tmp_path / f"2026-11-0{day}"
        folder.mkdir()
        clicks = pa.table({"item": np.arange(40) % 7, "click": np.arange(40) % 2})
        pq.write_table(clicks.slice(0, 10 * day), folder / "a.parquet")

    options = {
        "data": str(tmp_path / "{date}" / "*.parquet"),
        "start": "2026-11-01",
        "end": "2026-11-02",
        "label": "click",
        "features": "item",
        "model": "lr",
    }
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    record(model_dir, "ctr", **options)
    local_train(
        make_task(batch_size=50, num_examples=0, seed=1, **options),
        model_dir=model_dir,
    )
    return tmp_path


@pytest.mark.parametrize(
    ("data", "words", "num_rows"),
    [
        ("2026-11-03/a.parquet", (), 30),
        ("{date}/*.parquet", (), 10 + 20 + 30),
        ("{date}/*.parquet", ("--set", "start=2026-11-03"), 30),
        ("", (), 10 + 20),
    ],
)
def test_the_window_of_the_training_is_not_that_of_other_data(dated_clicks, data, words, num_rows):
    out = dated_clicks / "out.parquet"
    of_data = ("--data", dated_clicks / data) if data else ()
    done = run(dated_clicks / "model", *of_data, *words, "--out", out)
    assert done.exit_code == 0, done.output
    assert pq.read_metadata(out).num_rows == num_rows


def test_a_file_with_labels_has_them_beside_the_predictions(clicks):
    folder, _ = clicks
    out = folder / "out.parquet"
    assert run(folder / "model", "--out", out).exit_code == 0
    table = pq.read_table(out)
    assert table.column_names == ["label", "prediction"]
    assert table.num_rows == 500


def test_without_files_it_predicts_what_was_held_out(clicks):
    folder, _ = clicks
    data = folder / "new.parquet"
    held_out = ("--set", f"eval_data={data}")
    assert run(folder / "model", *held_out, "--out", folder / "held_out.parquet").exit_code == 0
    named = run(folder / "model", "--data", data, "--out", folder / "named.parquet")
    assert named.exit_code == 0
    by_default = pq.read_table(folder / "held_out.parquet")
    assert by_default.num_rows == 70
    assert by_default.equals(pq.read_table(folder / "named.parquet"))

    train = folder / "train.parquet"
    done = run(folder / "model", *held_out, "--data", train, "--out", folder / "train_out.parquet")
    assert "500 predictions" in done.output


def test_a_file_that_exists_is_written_only_when_told_to(clicks):
    folder, _ = clicks
    out = folder / "out.parquet"
    out.write_text("precious")
    done = run(folder / "model", "--out", out)
    assert done.exit_code == 1
    assert f"--out={out} exists; --overwrite writes it anew" in done.output
    table = folder / "table.csv"
    done = run(folder / "model", "--out", table)
    assert f"--out={table}: predictions are written as Parquet; use {folder}/table" in done.output
    assert not table.exists()
    assert done.output.count("\n") == 1
    assert out.read_text() == "precious"

    # What fails leaves the old file.
    assert run(folder / "model", "--out", out, "--overwrite", "--fields", "no").exit_code == 1
    assert out.read_text() == "precious"
    assert run(folder / "model", "--out", out, "--overwrite").exit_code == 0
    assert pq.read_table(out).num_rows == 500


def test_the_checkpoint_of_another_task_is_refused_by_what_it_lacks(clicks):
    folder, _ = clicks
    other = local_train(LikedTask(), model_dir=folder / "other", max_steps=3)
    out = folder / "out.parquet"
    done = run(folder / "model", "--out", out, "--checkpoint", other.checkpoint)
    assert done.exit_code == 1
    assert "has no table item, it has ['film', 'user']: it is a checkpoint of another task" in (
        done.output
    )
    assert done.output.count("\n") == 1
    assert not out.exists()


def test_a_checkpoint_that_is_removed_while_it_is_read_is_one_line(clicks, monkeypatch):
    folder, trained = clicks

    def remove_first(model, directory, **settings):
        shutil.rmtree(directory)
        return restore(model, directory, **settings)

    restore = LocalModel.restore
    monkeypatch.setattr(LocalModel, "restore", remove_first)
    done = run(folder / "model", "--out", folder / "out.parquet")
    assert done.exit_code == 1
    assert f"there is no complete checkpoint at {trained.checkpoint}, or no longer" in done.output
    assert done.output.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fields", "nothing"], "has no column nothing; it has item, click"),
        (["--fields", "label"], "would have the name of a column of the answer"),
        (["--data", "gone.parquet"], "gone.parquet: there is no such file"),
        (["--checkpoint", "model.ckpt-7"], "no complete checkpoint at model.ckpt-7"),
        (["--set", "model=deepfm"], "it was trained with other options"),
        (["--set", "model"], "expected KEYWORD=VALUE"),
    ],
)
def test_what_cannot_be_predicted_is_one_line_and_no_file(clicks, words, message):
    folder, _ = clicks
    out = folder / "out.parquet"
    done = run(folder / "model", "--out", out, *words)
    assert done.exit_code == 1
    assert message in done.output
    assert done.output.count("\n") == 1
    assert not list(folder.glob("out.parquet*"))


def test_a_task_of_features_is_predicted_by_the_file_of_its_job(tmp_path):
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    record(model_dir, "support.liked_task:LikedTask")
    local_train(LikedTask(), model_dir=model_dir)
    job = tmp_path / "job.toml"
    job.write_text(f'task = "support.liked_task:LikedTask"\nmodel_dir = "{model_dir}"\n')
    out = tmp_path / "out.parquet"
    done = run(job, "--out", out, "--fields", "user")
    assert done.exit_code == 0, done.output
    table = pq.read_table(out)
    assert table.column_names == ["user", "label", "prediction"]
    assert table.num_rows == 2000

    job.write_text('task = "support.liked_task:LikedTask"\n')
    assert "names no model directory" in run(job, "--out", out).output


def test_a_task_that_cannot_predict_says_so(tmp_path):
    record(tmp_path, "clicks", batch_size=64)
    from megalith.tasks.clicks import make_task as make_clicks

    task = make_clicks(batch_size=64, num_examples=64, seed=1)
    local_train(task, model_dir=tmp_path, evaluates=False)
    done = run(tmp_path, "--out", tmp_path / "x.parquet")
    assert "ClicksTask cannot predict: it has no method predictions" in done.output


def test_files_that_do_not_go_together_are_refused_in_one_line(clicks):
    """Two files, one of which has labels; and two with a field of other types."""
    folder, _ = clicks
    new = pq.read_table(folder / "new.parquet")
    labelled = new.append_column("click", pa.array(np.arange(70) % 2))
    pq.write_table(labelled, folder / "next.parquet")
    out = folder / "out.parquet"
    words = (folder / "model", "--data", folder / "ne*.parquet", "--out", out)
    done = run(*words)
    assert done.exit_code == 1
    assert "some examples have a label, and others have none" in done.output
    assert not out.exists()

    numbers = pa.array(np.arange(70) + 2**40)
    pq.write_table(new.append_column("day", pa.array([1] * 70, pa.int8())), folder / "new.parquet")
    pq.write_table(new.append_column("day", numbers), folder / "next.parquet")
    done = run(*words, "--fields", "day")
    assert done.exit_code == 1
    assert "a field is of another type than in the first examples" in done.output
    assert not out.exists()


def test_the_path_of_a_checkpoint_is_told_how_to_name_it(clicks):
    folder, _ = clicks
    (checkpoint,) = (folder / "model").glob("model.ckpt-*")
    done = run(checkpoint, "--out", folder / "out.parquet")
    assert done.exit_code == 1
    way = f"megalith predict {folder / 'model'} --checkpoint {checkpoint.name}"
    assert f"{checkpoint} is a checkpoint: {way}" in " ".join(done.output.split())
