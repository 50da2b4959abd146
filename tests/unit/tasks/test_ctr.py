"""The no-code task: its options, and one step of it against torch."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import megalith.client as mg
from megalith.errors import InvalidSetting, NonFiniteValue
from megalith.tasks.ctr import make_task
from megalith.tasks.ctr_options import CtrOptions


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(1)
    count = 300
    table = pa.table(
        {
            "click": rng.integers(2, size=count),
            "user": [f"u{n}" for n in rng.integers(20, size=count)],
            "item": rng.integers(30, size=count),
            "history": [rng.integers(30, size=n % 4) for n in range(count)],
            "price": rng.lognormal(3, 1, count),
            "ts": 1_700_000_000 + np.arange(count),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    return tmp_path / "a.parquet", table


def task_of(path, **options):
    defaults = {
        "data": str(path),
        "label": "click",
        "features": "user,item",
        "lists": "history:item",
        "dense": "price:log",
        "time": "ts",
        "model": "deepfm",
    }
    values = {"batch_size": 64, "num_examples": 0, "seed": 1} | defaults | options
    return make_task(**values)


def rows_of(task, batch, seed=2):
    rng = np.random.default_rng(seed)
    widths = {table.name: sum(s.dim for s in table.segments) for table in task.tables}
    ids = task.ids(batch)
    return {
        t: rng.normal(0, 0.3, (len(each), widths[t])).astype(np.float32) for t, each in ids.items()
    }


def variables_of(task):
    return {variable.name: variable.initial for variable in task.variables}


def test_a_step_is_that_of_torch_with_rows_shared_by_a_list(data):
    path, table = data
    task = task_of(path, model="fm", dim=3)
    batch = task.batch(0)
    rows, variables = rows_of(task, batch), variables_of(task)
    found = task.gradients(batch, rows, variables)

    # The same, example by example, from the values in the file.
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in rows.items()}
    place = {
        name: {int(fid): n for n, fid in enumerate(ids.values)}
        for name, ids in task.ids(batch).items()
    }
    price = np.log1p(table.column("price").to_numpy())
    first_group = price[:100]
    dense = (price - first_group.mean()) / first_group.std()
    logits = []
    for row in table.slice(0, 64).to_pylist():
        user = leaves["user"][place["user"][int(mg.hash_ids([row["user"]])[0])]]
        item = leaves["item"][place["item"][int(mg.hash_ids([row["item"]])[0])]]
        history = torch.zeros(4)
        if row["history"]:
            ids = mg.hash_ids(row["history"])
            history = torch.stack([leaves["item"][place["item"][int(i)]] for i in ids]).mean(0)
        parts = [user, item, history]
        pairs = sum(parts[i][1:] @ parts[j][1:] for i in range(3) for j in range(i))
        logits.append(sum(part[0] for part in parts) + pairs)
    logits = torch.stack(logits) + torch.tensor(dense[:64]) * variables["dense_weights"][0]
    labels = torch.tensor(table.column("click").to_numpy()[:64], dtype=torch.float64)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    loss.backward()

    assert found.loss == pytest.approx(loss.item() / 64, rel=1e-5)
    for name, leaf in leaves.items():
        np.testing.assert_allclose(found.rows[name], leaf.grad.numpy(), atol=1e-4)
    assert found.req_time_s == 1_700_000_063
    assert found.metrics.keys() == {"auc"}


def test_tables_have_the_names_of_features_and_lists_may_share_them(data):
    task = task_of(data[0])
    assert [table.name for table in task.tables] == ["item", "user"]
    own = task_of(data[0], lists="history")
    assert [table.name for table in own.tables] == ["history", "item", "user"]


def test_epochs_or_examples_say_how_long_training_is(data):
    assert task_of(data[0]).num_batches() == 5  # 300 rows, 64 at a time
    assert task_of(data[0], epochs=3).num_batches() == 15
    assert task_of(data[0], epochs=3, num_examples=100).num_batches() == 2


def test_the_evaluation_is_that_of_all_examples(data):
    path, _ = data
    task = task_of(path, eval_data=str(path), slice_by="user", num_tracks=2)
    variables = variables_of(task)

    def read(ids, names):
        rng = np.random.default_rng(9)
        widths = {t.name: sum(s.dim for s in t.segments) for t in task.tables}
        return {
            t: rng.normal(0, 1, (len(i), widths[t])).astype(np.float32) for t, i in ids.items()
        }, {name: variables[name] for name in names}

    figures = task.evaluate(read)
    assert {"auc", "log_loss", "calibration", "auc user=u1"} <= figures.keys()
    assert 0 < figures["auc"] < 1
    assert task_of(path).evaluate(read) == {}


def test_predictions_that_are_no_numbers_stop_with_the_place_in_the_data(data):
    task = task_of(data[0])
    batch = task.batch(2)
    rows = rows_of(task, batch)
    rows["item"][:] = np.nan
    with pytest.raises(
        NonFiniteValue,
        match=r"64 of 64 predictions are NaN .*a\.parquet, row group 1; .* --row-rate",
    ):
        task.gradients(batch, rows, variables_of(task))


def test_a_step_goes_on_where_all_values_of_a_feature_are_missing(tmp_path):
    table = pa.table(
        {"click": [0, 1] * 5, "user": pa.array([None] * 10, pa.string()), "item": [1] * 10}
    )
    pq.write_table(table, tmp_path / "x.parquet")
    task = task_of(tmp_path / "x.parquet", lists="", dense="", time="")
    batch = task.batch(0)
    assert task.ids(batch).keys() == {"item"}
    found = task.gradients(batch, rows_of(task, batch), variables_of(task))
    assert found.rows.keys() == {"item"}
    assert found.metrics["missing_per_example"] == 1.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"data": ""}, "--data: which files"),
        ({"label": ""}, "--label: which column"),
        ({"features": "", "lists": ""}, "--features: which columns have rows"),
        ({"lists": "history:movie"}, "--lists=history:movie: movie is not in --features"),
        ({"features": "user,user"}, "--features and --lists name user twice"),
        ({"label": "age>=4", "features": "user,age"}, "--label=age>=4: age is a feature too"),
        ({"label": "price", "dense": "price:log"}, "--label=price: price is a feature too"),
        ({"dense": "price:cube"}, "--dense=price:cube: the only change of numbers is price:log"),
        ({"time": "ts:weeks"}, "--time=ts:weeks: a unit is one of s, ms, us, ns"),
        ({"hidden": "64,x"}, "--hidden=64,x: expected widths such as 64,32"),
        ({"hidden": "0"}, "--hidden=0: a layer has one unit or more"),
        ({"shuffle": "some"}, "--shuffle=some: expected auto, yes or no"),
        ({"epochs": 0}, "--epochs=0: must be above 0"),
        ({"model": "wide"}, "--model=wide: there are lr, fm, deepfm, dcn"),
    ],
)
def test_wrong_options_are_refused_by_name(options, complaint):
    values = {"data": "x.csv", "label": "click", "features": "user"} | options
    with pytest.raises(InvalidSetting, match=complaint):
        CtrOptions(**values)
