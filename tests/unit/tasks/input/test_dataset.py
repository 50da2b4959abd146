import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import megalith.client as mg
from megalith.errors import BadData
from megalith.tasks.input import blocks
from megalith.tasks.input import dataset as dataset_module
from megalith.tasks.input.blocks import read_block
from megalith.tasks.input.columns import DenseColumn, IdColumn, Label, TimeColumn
from megalith.tasks.input.dataset import Dataset, common_schema
from megalith.tasks.input.examples import DataColumns, examples_of
from megalith.tasks.input.index import DataIndex, joined_tables
from megalith.tasks.input.schemas import kinds_of
from megalith.tasks.input.unlabelled import blocks_to_predict

COLUMNS = DataColumns(
    label=Label("click"),
    ids=(IdColumn("user", "user"), IdColumn("history", "user", is_list=True)),
    dense=(DenseColumn("price"),),
    time=TimeColumn("ts"),
)


def made(count, start=0, seed=1):
    """Rows whose number is their time, so that they can be told apart."""
    rng = np.random.default_rng([seed, start])
    return pa.table(
        {
            "unused": rng.random(count),
            "ts": np.arange(start, start + count),
            "user": [f"u{n}" for n in rng.integers(50, size=count)],
            "history": [
                [f"u{n}" for n in rng.integers(50, size=rng.integers(4))] for _ in range(count)
            ],
            "price": rng.random(count),
            "click": rng.integers(2, size=count),
        }
    )


def dataset(folder, columns=COLUMNS, **options):
    index = DataIndex.build([str(folder / "*.*")])
    return Dataset(index, columns, **{"batch_size": 64, **options})


def epoch(data, number=0):
    count = data.batches_per_epoch
    return [data.batch(number * count + n).examples for n in range(count)]


WORDS = ["NA", "null", "nan", "NULL", "n/a", "None", "x"]


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_words_for_nothing_are_ids_and_only_empty_text_is_missing(tmp_path, ending):
    tab = "," if ending == "csv" else "\t"
    lines = [tab.join(row) for row in [("c", "u", "p"), *((("1"), w, "NaN") for w in [*WORDS, ""])]]
    (tmp_path / f"a.{ending}").write_text("\n".join(lines) + "\n")
    columns = DataColumns(Label("c"), (IdColumn("u", "u"),), (DenseColumn("p"),))
    (batch,) = epoch(dataset(tmp_path, columns))
    np.testing.assert_array_equal(batch.ids["u"].values, mg.hash_ids(WORDS))
    assert batch.ids["u"].row_splits.tolist() == [*range(8), 7]
    assert np.isnan(batch.dense).all()
    assert batch.missing.tolist() == [1] * 7 + [2]


def test_words_for_nothing_among_numbers_are_no_ids_of_text(tmp_path):
    (tmp_path / "a.csv").write_text("c,u,p\n1,5,NA\n1,,1.5\n0,7,null\n")
    columns = DataColumns(Label("c"), (IdColumn("u", "u"),), (DenseColumn("p"),))
    (batch,) = epoch(dataset(tmp_path, columns))
    np.testing.assert_array_equal(batch.ids["u"].values, mg.hash_ids([5, 7]))
    np.testing.assert_array_equal(batch.dense[:, 0], [np.nan, 1.5, np.nan])


def test_numbers_of_text_may_be_whole_or_missing_in_the_first_block(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_TEXT_BLOCK_BYTES", 40)
    lines = [*["3,7,5,"] * 20, "3.5,8,1.5,2.5"]
    (tmp_path / "a.csv").write_text("rating,user,price,age\n" + "\n".join(lines) + "\n")
    (tmp_path / "b.csv").write_text("rating,user,price,age\n4,9,,\n")
    columns = DataColumns(
        Label("rating", ">=", 3.5),
        (IdColumn("user", "user"),),
        (DenseColumn("price"), DenseColumn("age")),
    )
    (batch,) = epoch(dataset(tmp_path, columns))
    assert batch.labels.tolist() == [0] * 20 + [1, 1]
    np.testing.assert_array_equal(batch.dense[:, 0], [5] * 20 + [1.5, np.nan])
    np.testing.assert_array_equal(batch.dense[:, 1], [np.nan] * 20 + [2.5, np.nan])
    np.testing.assert_array_equal(batch.ids["user"].values, mg.hash_ids([7] * 20 + [8, 9]))

    index = DataIndex.build([str(tmp_path / "*.csv")])
    predicted = list(blocks_to_predict(index, columns, (), ["user"], {}))
    assert sum(len(each.examples) for each in predicted) == 22
    assert predicted[0].fields["user"].type == pa.int64()


@pytest.mark.parametrize("options", [{}, {"shuffle_seed": 4}, {"num_tracks": 3, "shuffle_seed": 1}])
def test_an_epoch_has_every_row_once_with_all_its_values(tmp_path, options):
    tables = [made(700, 0), made(500, 700), made(300, 1200)]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=170)
    rows = pa.concat_tables(tables).to_pylist()

    batches = epoch(dataset(tmp_path, **options))
    assert sorted(np.concatenate([each.times for each in batches])) == list(range(1500))
    for batch in batches:
        for place, time in enumerate(batch.times):
            row = rows[time]
            users, histories = batch.ids["user"], batch.ids["history"]
            assert batch.labels[place] == row["click"]
            assert batch.dense[place, 0] == np.float32(row["price"])
            assert users.values[users.row_splits[place]] == mg.hash_ids([row["user"]])[0]
            ids = histories.values[histories.row_splits[place] : histories.row_splits[place + 1]]
            np.testing.assert_array_equal(ids, mg.hash_ids(row["history"] or np.empty(0, int)))


def test_without_a_seed_rows_come_in_the_order_of_the_files(tmp_path):
    pq.write_table(made(500), tmp_path / "a.parquet", row_group_size=90)
    pq.write_table(made(200, 500), tmp_path / "b.parquet")
    times = np.concatenate([each.times for each in epoch(dataset(tmp_path))])
    np.testing.assert_array_equal(times, np.arange(700))


def test_a_seed_mixes_rows_in_another_way_in_each_epoch(tmp_path):
    pq.write_table(made(500), tmp_path / "a.parquet", row_group_size=100)
    data = dataset(tmp_path, shuffle_seed=2)
    first, second = (np.concatenate([b.times for b in epoch(data, n)]) for n in range(2))
    assert not np.array_equal(first, second)
    again = np.concatenate([b.times for b in epoch(dataset(tmp_path, shuffle_seed=2))])
    np.testing.assert_array_equal(first, again)


def test_csv_has_the_ids_that_parquet_has(tmp_path):
    table = made(400).set_column(3, "history", pa.array(["u1|u2"] * 400))
    (tmp_path / "p").mkdir()
    (tmp_path / "c").mkdir()
    pq.write_table(table, tmp_path / "p" / "x.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "c" / "x.csv")
    for one, other in zip(
        epoch(dataset(tmp_path / "p")), epoch(dataset(tmp_path / "c")), strict=True
    ):
        np.testing.assert_array_equal(one.ids["user"].values, other.ids["user"].values)
        np.testing.assert_array_equal(one.ids["history"].values, other.ids["history"].values)
        np.testing.assert_array_equal(one.dense, other.dense)


def test_a_column_that_is_used_twice_lacks_its_values_twice():
    """As an id and as a number, each of which the model sees."""
    table = pa.table({"click": [0, 1, 1], "age": pa.array([None, 7, None], pa.int64())})
    columns = DataColumns(Label("click"), (IdColumn("age", "age"),), (DenseColumn("age"),))
    examples = examples_of(table, columns, "x.parquet")
    assert examples.missing.tolist() == [2, 0, 2]
    assert examples.missing_by_column == {"age": 4}


def test_missing_values_are_counted_where_they_are(tmp_path, caplog):
    table = made(100)
    price = [None if n % 10 == 0 else 1.0 for n in range(100)]
    user = [None if n % 25 == 0 else "u" for n in range(100)]
    table = table.set_column(4, "price", pa.array(price)).set_column(2, "user", pa.array(user))
    pq.write_table(table, tmp_path / "a.parquet")
    with caplog.at_level("INFO"):
        batches = epoch(dataset(tmp_path, batch_size=50))

    said = f"missing values=14 rows=100 in {tmp_path}/a.parquet, row group 0: user 4, price 10"
    assert said in caplog.messages
    assert [int(batch.missing.sum()) for batch in batches] == [5 + 2, 5 + 2]
    assert np.isnan(batches[0].dense[0, 0])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.drop_columns(["price"]), r"b\.parquet has no column price; it has unused, ts"),
        (
            lambda t: t.set_column(2, "user", pa.array(range(100))),
            r"b\.parquet: column user is int64, but string in .*a\.parquet",
        ),
    ],
)
def test_files_that_do_not_fit_together_are_refused_by_name(tmp_path, change, complaint):
    pq.write_table(made(100), tmp_path / "a.parquet")
    pq.write_table(change(made(100)), tmp_path / "b.parquet")
    with pytest.raises(BadData, match=complaint):
        dataset(tmp_path)


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("is_pieced", [False, True])
def test_a_column_without_any_value_in_one_file_is_missing_there(tmp_path, names, is_pieced):
    """As pandas writes it: its type is null, or a list of null."""
    nothing = {
        "user": pa.nulls(4),
        "tags": pa.nulls(4),
        "more": pa.array([[], [], None, []]),
        "price": pa.nulls(4),
        "click": pa.array([0, 1, 0, 1]),
    }
    something = {
        "user": pa.array(["u", "v"]),
        "tags": pa.array([[1], [2, 3]]),
        "more": pa.array([["x"], ["y"]]),
        "price": pa.array([1.5, 2.5]),
        "click": pa.array([1, 0]),
    }
    pq.write_table(pa.table(nothing), tmp_path / f"{names[0]}.parquet")
    pq.write_table(pa.table(something), tmp_path / f"{names[1]}.parquet")
    index = DataIndex.build([str(tmp_path / "*.parquet")])
    columns = DataColumns(
        Label("click"),
        (
            IdColumn("user", "user"),
            IdColumn("tags", "tags", is_list=True),
            IdColumn("more", "more", is_list=True),
        ),
        (DenseColumn("price"),),
    )
    schema = common_schema(index, columns)
    assert kinds_of(schema, columns.ids) == {
        "user": "text",
        "tags": "list of number",
        "more": "list of text",
    }
    if is_pieced:
        blocks = index.blocks
        tables = [read_block(block.file, block.number, schema) for block in blocks]
        examples = examples_of(joined_tables(tables, blocks), columns, "here")
    else:
        examples = Dataset(index, columns, batch_size=6).batch(0).examples

    np.testing.assert_array_equal(examples.ids["user"].values, mg.hash_ids(["u", "v"]))
    np.testing.assert_array_equal(examples.ids["tags"].values, mg.hash_ids([1, 2, 3]))
    np.testing.assert_array_equal(examples.ids["more"].values, mg.hash_ids(["x", "y"]))
    missing = [3, 3, 4, 3]
    expected = [*missing, 0, 0] if names == "ab" else [0, 0, *missing]
    np.testing.assert_array_equal(examples.missing, expected)
    np.testing.assert_array_equal(np.isnan(examples.dense[:, 0]), np.array(expected) > 0)


def test_a_label_without_any_value_is_missing(tmp_path):
    users = pa.array([1, 2])
    pq.write_table(pa.table({"user": users, "click": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"user": users, "click": pa.nulls(2)}), tmp_path / "b.parquet")
    index = DataIndex.build([str(tmp_path / "*.parquet")])
    data = Dataset(index, DataColumns(Label("click"), (IdColumn("user", "user"),)), batch_size=2)
    data.batch(0)
    with pytest.raises(
        BadData, match=r"b\.parquet, row group 0, .* the label is missing in 2 rows"
    ):
        data.batch(1)


@pytest.mark.parametrize("is_pieced", [False, True])
def test_times_may_be_of_another_unit_in_each_file(tmp_path, is_pieced):
    """Writers have changed their mind: pandas 3 counts in microseconds, earlier ones did not."""
    seconds = [1_700_000_000, 1_700_000_001]
    for name, unit, per_s in (("a", "ns", 10**9), ("b", "us", 10**6), ("c", "ms", 10**3)):
        times = pa.array([each * per_s for each in seconds], pa.timestamp(unit, "UTC"))
        table = pa.table({"user": [1, 2], "click": [0, 1], "ts": times})
        pq.write_table(table, tmp_path / f"{name}.parquet")

    index = DataIndex.build([str(tmp_path / "*.parquet")])
    user = IdColumn("user", "user")
    columns = DataColumns(Label("click"), (user,), time=TimeColumn("ts"))
    if is_pieced:
        schema = common_schema(index, columns)
        tables = [read_block(block.file, block.number, schema) for block in index.blocks]
        examples = examples_of(joined_tables(tables, index.blocks), columns, "here")
    else:
        examples = Dataset(index, columns, batch_size=6).batch(0).examples

    assert examples.times.tolist() == seconds * 3


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_samples_of_dense_columns_read_no_other_column(tmp_path, monkeypatch, ending):
    """Twenty row groups may be looked at before the first step, by each worker."""
    table = pa.table({"user": [1, 2], "price": [1.5, 2.5], "age": [7, 8], "click": [0, 1]})
    path = tmp_path / f"a.{ending}"
    if ending == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pq.write_table(table, path, row_group_size=1)

    columns = DataColumns(
        Label("click"),
        (IdColumn("user", "user"),),
        (DenseColumn("age"), DenseColumn("price"), DenseColumn("age", is_log=True)),
    )
    data = Dataset(DataIndex.build([str(path)]), columns, batch_size=2)
    read = []

    def noting(file, number, schema):
        read.append(sorted(schema.names))
        return read_block(file, number, schema)

    monkeypatch.setattr(dataset_module, "read_block", noting)
    sample = np.concatenate(list(data.first_dense(20)))
    expected = np.array([[7, 1.5, np.log(8)], [8, 2.5, np.log(9)]], np.float32)
    np.testing.assert_allclose(sample, expected, rtol=1e-6)
    assert read == [["age", "price"]] * (1 if ending == "csv" else 2)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_two_columns_of_one_name_are_refused_where_one_is_read(tmp_path, ending):
    twice = pa.table([[1, 0], [1, 2], [3, 4], [5, 6]], names=["click", "user", "item", "item"])
    path = tmp_path / f"twice.{ending}"
    if ending == "csv":
        pyarrow.csv.write_csv(twice, path)
    else:
        pq.write_table(twice, path)

    index = DataIndex.build([str(path)])
    user = IdColumn("user", "user")
    data = Dataset(index, DataColumns(Label("click"), (user,)), batch_size=2)
    np.testing.assert_array_equal(data.batch(0).examples.ids["user"].values, mg.hash_ids([1, 2]))

    columns = DataColumns(Label("click"), (user, IdColumn("item", "item")))
    with pytest.raises(BadData, match=r"has 2 columns item; rename them in the file"):
        Dataset(index, columns, batch_size=2)


def test_a_text_file_without_rows_fits_beside_others(tmp_path):
    table = made(100).drop_columns(["history"])
    header = ",".join(table.column_names) + "\n"
    for name in ("0.csv", "2.csv"):
        (tmp_path / name).write_text(header)
    pyarrow.csv.write_csv(table, tmp_path / "1.csv")
    index = DataIndex.build([str(tmp_path / "*.csv")])
    columns = DataColumns(ids=(IdColumn("ts", "ts"),), label=Label("click"))
    assert common_schema(index, columns).field("ts").type == pa.int64()


def test_a_bad_value_is_named_with_file_row_group_column_and_row(tmp_path):
    table = made(300)
    clicks = np.zeros(300)
    clicks[250] = 7
    pq.write_table(
        table.set_column(5, "click", pa.array(clicks)), tmp_path / "a.parquet", row_group_size=100
    )
    data = dataset(tmp_path, batch_size=100)
    data.batch(1)
    with pytest.raises(
        BadData, match=r"a\.parquet, row group 2, column click: 1 label is .* is 7 in row 50"
    ):
        data.batch(2)


@pytest.mark.long
def test_a_large_data_set_is_read_whole(tmp_path):
    for number in range(4):
        pq.write_table(
            made(100_000, number * 100_000), tmp_path / f"{number}.parquet", row_group_size=9_999
        )
    data = dataset(tmp_path, batch_size=2048, num_tracks=3, shuffle_seed=1)
    times = np.sort(np.concatenate([each.times for each in epoch(data)]))
    np.testing.assert_array_equal(times, np.arange(400_000))
