"""The no-code task: its options, and one step of it against torch."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import megalith.client as mg
from megalith.controller.members.piece_book import PieceBook
from megalith.errors import BadData, InvalidSetting, NonFiniteValue
from megalith.local import local_train
from megalith.tasks.ctr import make_task
from megalith.tasks.ctr_options import CtrOptions
from megalith.worker.input import Mode
from megalith.worker.session.piece_source import ControllerPieces


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
    assert found.metrics.keys() == {"auc", "calibration"}


def test_a_dense_column_is_scaled_by_the_first_row_group_that_has_values_of_it(tmp_path):
    """Sorted files have all missing values at one end: unscaled, the others would spoil a model."""
    prices = np.arange(400) * 1e6
    table = pa.table(
        {
            "click": np.arange(400) % 2,
            "user": np.arange(400),
            "price": pa.array(prices, mask=np.arange(400) < 210),
            "age": np.arange(400) * 1.0,
            "never": pa.nulls(400, pa.float64()),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=100)
    task = make_task(
        batch_size=64,
        num_examples=0,
        seed=1,
        data=str(path),
        label="click",
        features="user",
        dense="price,age,never",
        model="lr",
    )
    found = variables_of(task)
    of_price = prices[210:300]
    of_age = np.arange(100)
    np.testing.assert_allclose(found["dense_mean"], [of_price.mean(), of_age.mean(), 0], rtol=1e-6)
    np.testing.assert_allclose(
        found["dense_deviation"], [of_price.std(), of_age.std(), 1], rtol=1e-6
    )


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
    task = task_of(path, eval_data=str(path), group_by="user", num_tracks=2)
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


@pytest.mark.parametrize("bad", [("click", 3), ("ts", None)])
@pytest.mark.parametrize("kind", ["static", "dynamic", "dynamic, followed"])
def test_a_bad_row_is_named_by_its_row_group_although_its_batch_has_rows_of_several(
    data, tmp_path, kind, bad
):
    _, table = data
    name, value = bad
    values = table.column(name).to_pylist()
    values[117] = value
    wrong = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    pq.write_table(wrong, tmp_path / "b.parquet", row_group_size=100)

    follow = "no" if kind == "dynamic" else "0.1"
    task = task_of(tmp_path / "?.parquet", batch_size=350, follow=follow, shuffle="yes")
    if kind == "static":
        batches = task.input(Mode.TRAIN, 0, 1).batches(b"")
    else:
        input_ = task.pieced_input(Mode.TRAIN)
        input_.draw_from(ControllerPieces(OneWorkerBook(), 0, lambda: "w"))
        batches = input_.batches(b"")

    what = rf"b\.parquet, row group 1, column {name}: .*row 17\b"
    with pytest.raises(BadData, match=what):
        list(batches)


class OneWorkerBook:
    def __init__(self):
        self._book = PieceBook()

    def take_pieces(self, request, timeout_s):
        return self._book.take(request, lambda index, incarnation: False)


def streamed(task, sharding):
    """What worker-0 of one reads of the files, as they come or in pieces."""
    if sharding == "static":
        yield from task.input(Mode.TRAIN, 0, 1).batches(b"")
        return

    input_ = task.pieced_input(Mode.TRAIN)
    pieces = ControllerPieces(OneWorkerBook(), 0, lambda: "w")
    input_.draw_from(pieces)
    for drawn in input_.batches(b""):
        yield drawn
        pieces.trained(drawn.cursor)


@pytest.mark.parametrize(
    ("sharding", "follow"), [("static", "no"), ("static", "0.1"), ("dynamic", "no")]
)
def test_a_batch_has_rows_of_files_that_have_a_column_in_other_types(
    data, tmp_path, sharding, follow
):
    _, table = data
    users = table.column("user").combine_chunks()
    changes = {
        "click": table.column("click").cast(pa.bool_()),
        "user": users.dictionary_encode(),
        "item": table.column("item").cast(pa.float64()),
    }
    other = table
    for name, column in changes.items():
        other = other.set_column(other.schema.get_field_index(name), name, column)
    pq.write_table(other, tmp_path / "b.parquet", row_group_size=100)

    task = task_of(tmp_path / "?.parquet", batch_size=250, follow=follow, shuffle="no")
    read = [drawn.batch.examples for drawn in streamed(task, sharding)]
    assert [len(examples) for examples in read] == [250, 250, 100]
    labels = np.concatenate([examples.labels for examples in read])
    np.testing.assert_array_equal(labels, np.tile(table.column("click").to_numpy(), 2))
    for name in ("user", "item"):
        ids = np.concatenate([examples.ids[name].values for examples in read])
        np.testing.assert_array_equal(ids, np.tile(mg.hash_ids(table.column(name).to_pylist()), 2))


@pytest.mark.parametrize("sharding", ["static", "dynamic"])
def test_a_column_whose_types_no_type_holds_is_named_by_its_files(data, tmp_path, sharding):
    _, table = data
    position = table.schema.get_field_index("item")
    wide = table.set_column(position, "item", pa.array([2**60 + n for n in range(300)]))
    gaps = table.set_column(position, "item", pa.array([1.0, None] * 150))
    pq.write_table(wide, tmp_path / "b.parquet")
    pq.write_table(gaps, tmp_path / "c.parquet")
    task = task_of(tmp_path / "[bc].parquet", batch_size=250, follow="0.1", shuffle="no")
    with pytest.raises(BadData, match=r"b\.parquet, .*c\.parquet: a column .* with the same type"):
        list(streamed(task, sharding))


TEXT_5 = r"column item is text, and the model is trained on number there.*or train a new model"


def csv_of(path, table, **changes):
    columns = {
        name: changes.get(name, table.column(name).to_pylist()) for name in table.schema.names
    }
    columns.pop("history")
    lines = [",".join(columns)]
    lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_held_out_ids_of_another_kind_are_refused_by_name(data, tmp_path):
    path, table = data
    items = pa.array([str(n) for n in table.column("item").to_pylist()])
    wrong = table.set_column(table.schema.get_field_index("item"), "item", items)
    pq.write_table(wrong, tmp_path / "day2.parquet")

    day2 = str(tmp_path / "day2.parquet")
    with pytest.raises(BadData, match=rf"day2.parquet: {TEXT_5}"):
        local_train(task_of(path, eval_data=day2), max_steps=1)
    task = task_of(path, eval_data=day2)
    with pytest.raises(BadData, match=rf"day2.parquet: {TEXT_5}"):
        next(task.predictions(local_train(task, max_steps=1, evaluates=False).read, []))


def test_a_task_that_scores_knows_the_kinds_of_its_training(data, tmp_path):
    path, table = data
    text = csv_of(tmp_path / "day2.csv", table, user=[5] * 300)
    told = {"lists": "", "eval_data": str(text), "group_by": "user"}
    task = task_of("gone", scores_only=True, kinds={"user": "text", "item": "number"}, **told)
    (first,) = task.predictions(local_train(task_of(path, lists="")).read, ["user"])
    assert first.fields["user"].type == pa.string()

    numbers = task_of("gone", scores_only=True, kinds={"user": "text", "item": "text"}, **told)
    found = list(numbers.predictions(local_train(task_of(path, lists="")).read, ["item"]))
    assert found[0].fields["item"].type == pa.string()

    other = task_of(
        "gone",
        scores_only=True,
        kinds={"user": "text", "item": "number"},
        **{**told, "eval_data": str(csv_of(tmp_path / "day3.csv", table, item=["a"] * 300))},
    )
    with pytest.raises(BadData, match=TEXT_5):
        other.evaluate(None)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_without_values_has_ids_of_no_kind(data, tmp_path, ending):
    path, table = data
    held_out = tmp_path / f"day2.{ending}"
    if ending == "csv":
        csv_of(held_out, table, item=[""] * 300)
    else:
        nothing = table.set_column(table.schema.get_field_index("item"), "item", pa.nulls(300))
        pq.write_table(nothing, held_out)

    read = local_train(task_of(path, lists="")).read
    kinds = {"user": "text", "item": "number"}
    task = task_of("gone", lists="", scores_only=True, kinds=kinds, eval_data=str(held_out))
    assert task.evaluate(read)["missing_values"] == 300
    (block,) = list(task.predictions(read, []))[-1:]
    assert np.isfinite(block.logits).all()

    both = f"{csv_of(tmp_path / 'full.csv', table)},{held_out}"
    if ending == "csv":
        followed = task_of(both, lists="")
        assert [followed.batch(number).examples.missing.sum() for number in (0, 9)] == [0, 24]


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
        ({"warmup_steps": -2}, "--warmup-steps=-2: expected -1 or more"),
        ({"model": "wide"}, "--model=wide: there are lr, fm, deepfm, dcn"),
    ],
)
def test_wrong_options_are_refused_by_name(options, complaint):
    values = {"data": "x.csv", "label": "click", "features": "user"} | options
    with pytest.raises(InvalidSetting, match=complaint):
        CtrOptions(**values)


@pytest.mark.parametrize("model", ["fm", "deepfm", "dcn"])
def test_the_rate_of_all_rows_grows_for_a_step_for_each_pair_of_features(data, model):
    path, _ = data
    for table in task_of(path, model=model).tables:  # of user, item and history
        assert table.learning_rates(0) == pytest.approx(0.0)
        assert table.learning_rates(1) == pytest.approx(0.05 / 3)
        assert table.learning_rates(3) == pytest.approx(0.05)
        assert table.learning_rates(1000) == pytest.approx(0.05)


@pytest.mark.parametrize("options", [{"model": "lr"}, {"model": "fm", "warmup_steps": 0}])
def test_the_linear_model_learns_at_the_full_rate_at_once_and_so_does_any_that_is_told(
    data, options
):
    path, _ = data
    for table in task_of(path, **options).tables:
        assert table.learning_rates(0) == pytest.approx(0.05)


def test_the_rate_of_rows_grows_for_as_long_as_it_is_told(data):
    path, _ = data
    for table in task_of(path, model="lr", warmup_steps=10).tables:
        assert table.learning_rates(5) == pytest.approx(0.025)


def test_gradients_of_layers_are_clipped_to_their_common_norm_if_asked(data):
    path, _ = data
    free, clipped = task_of(path), task_of(path, clip_norm=0.01)
    batch = free.batch(0)
    rows, variables = rows_of(free, batch), variables_of(free)
    before = free.gradients(batch, rows, variables)
    after = clipped.gradients(clipped.batch(0), rows, variables)

    norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in before.variables.values()))
    assert norm > 0.01
    for name, gradient in before.variables.items():
        np.testing.assert_allclose(after.variables[name], gradient * 0.01 / norm, rtol=1e-4)
    for table, gradient in before.rows.items():
        np.testing.assert_array_equal(after.rows[table], gradient)


@pytest.mark.parametrize(("batch_size", "num_tracks"), [(64, 1), (128, 1), (64, 2)])
def test_batches_of_other_examples_than_a_checkpoint_s_are_read_from_the_start(
    data, tmp_path, batch_size, num_tracks
):
    """With 3 batches of 128 in an epoch of 300 examples, batch 3 does not begin at example 384."""
    others = {"batch_size": batch_size, "num_tracks": num_tracks}
    first = local_train(task_of(data[0], epochs=2, **others), model_dir=tmp_path / "m", max_steps=4)
    rest = local_train(task_of(data[0], epochs=2), model_dir=tmp_path / "m")
    is_same = (batch_size, num_tracks) == (64, 1)
    assert rest.examples == (600 - first.examples if is_same else 600)


def test_files_that_have_changed_since_a_checkpoint_are_read_from_the_start(data, tmp_path):
    path, table = data
    local_train(task_of(path), model_dir=tmp_path / "m", max_steps=2)
    pq.write_table(pa.concat_tables([table, table]), path, row_group_size=100)
    assert local_train(task_of(path), model_dir=tmp_path / "m").examples == 600


def test_missing_values_of_a_training_are_summed_up(data):
    path, table = data
    users = pa.array([None if n % 3 == 0 else "u" for n in range(300)])
    pq.write_table(table.set_column(1, "user", users), path)
    run = local_train(task_of(path, epochs=2))
    assert run.missing_values == 200
