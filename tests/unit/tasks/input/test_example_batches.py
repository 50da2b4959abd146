"""Files of ExampleBatch: what is written is read, by number and as columns."""

import numpy as np
import pyarrow as pa
import pytest

import megalith.client as mg
from megalith.errors import BadData, DtypeMismatch, ShapeMismatch
from megalith.local import local_train
from megalith.protos import example_batch_pb2 as pb
from megalith.tasks.api import FeatureBatch, FeatureTask, InputBatch, StepOutput
from megalith.tasks.ctr_options import CtrOptions
from megalith.tasks.input import tf_records
from megalith.tasks.input.blocks import index_file, read_block, schema_of
from megalith.tasks.input.dataset import Dataset
from megalith.tasks.input.example_files import ExampleBatches, write_example_batches
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.tf_records import write_records


def whole(path):
    file = index_file(str(path))
    schema = schema_of(file)
    tables = [read_block(file, block, schema) for block in range(len(file.rows))]
    return pa.concat_tables(tables)


def random_batch(rng, size):
    lengths = rng.integers(0, 4, size)
    history = mg.Ragged(rng.integers(-(2**63), 2**63, lengths.sum()), np.cumsum([0, *lengths]))
    ids = {
        "item": rng.integers(0, 1000, size),
        "history": history,
        "user": mg.Ragged.shared(rng.integers(0, 9, 2)),
    }
    labels = rng.integers(0, 2, size).astype(np.float32)
    return FeatureBatch(ids, labels, rng.random((size, 2)).astype(np.float32))


def numbered_batches(rng, count, size):
    return [
        InputBatch(random_batch(rng, size + number % 3), b"", 1_700_000_000 + number)
        for number in range(count)
    ]


def check_equal(read, written):
    np.testing.assert_array_equal(read.labels, written.labels)
    np.testing.assert_array_equal(read.dense, written.dense)
    assert list(read.ids) == list(written.ids)
    for name, ids in written.ids.items():
        wanted = mg.Ragged.of(ids)
        np.testing.assert_array_equal(read.ids[name].values, wanted.values)
        np.testing.assert_array_equal(read.ids[name].row_splits, wanted.row_splits)
        assert read.ids[name].is_shared == wanted.is_shared


def test_batches_of_several_files_are_those_that_were_written(tmp_path):
    made = numbered_batches(np.random.default_rng(1), 50, 20)
    write_example_batches(tmp_path / "a.examples", made[:30])
    write_example_batches(tmp_path / "b.examples", made[30:])
    batches = ExampleBatches(str(tmp_path / "*.examples"))
    assert len(batches) == 50
    for number in (49, 0, 30, 29, 7):
        check_equal(batches[number], made[number].batch)


def test_workers_share_them_with_their_times_and_go_on_at_a_cursor(tmp_path):
    made = numbered_batches(np.random.default_rng(1), 7, 5)
    write_example_batches(tmp_path / "a.examples", made)
    batches = ExampleBatches(str(tmp_path / "a.examples"))
    drawn = list(batches.read(1, 3).batches(b""))
    assert [one.req_time_s - 1_700_000_000 for one in drawn] == [1, 4]
    assert drawn[0].where.startswith(f"{tmp_path}/a.examples, byte ")
    (rest,) = batches.read(1, 3).batches(drawn[0].cursor)
    check_equal(rest.batch, made[4].batch)
    for one in (0, 1):  # of two workers where there were three: batch 1 is the first not read
        cursor = batches.read(one, 2).resumed([drawn[0].cursor, b"", b""], one, 2)
        assert next(batches.read(one, 2).batches(cursor)).req_time_s % 100 == (2, 1)[one]


def test_300_000_examples_are_columns_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(tf_records, "_BLOCK_BYTES", 1 << 20)
    rng = np.random.default_rng(2)
    made = numbered_batches(rng, 300, 1000)
    write_example_batches(tmp_path / "a.examples", made, dense=["price", "age"])
    file = index_file(str(tmp_path / "a.examples"))
    assert len(file.rows) > 5
    table = whole(tmp_path / "a.examples")
    assert table.num_rows == sum(len(one.batch) for one in made) == 300_300
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "age": "float",
        "history": "list<item: int64>",
        "item": "int64",
        "label": "float",
        "price": "float",
        "time_s": "int64",
        "user": "list<item: int64>",
    }

    def column(of):
        return np.concatenate([of(one.batch) for one in made])

    np.testing.assert_array_equal(table["item"], column(lambda one: one.ids["item"]))
    np.testing.assert_array_equal(table["age"], column(lambda one: one.dense[:, 1]))
    np.testing.assert_array_equal(table["label"], column(lambda one: one.labels))
    np.testing.assert_array_equal(
        pa.concat_arrays(table["history"].chunks).flatten(),
        column(lambda one: one.ids["history"].values),
    )
    users = table["user"].to_pylist()
    assert users[0] == users[999] == made[0].batch.ids["user"].values.tolist()
    assert table["time_s"][-1].as_py() == 1_700_000_299


def test_a_click_model_reads_them_as_columns(tmp_path):
    made = numbered_batches(np.random.default_rng(3), 10, 100)
    write_example_batches(tmp_path / "a.examples", made, dense=["price", "age"])
    options = CtrOptions(
        data=str(tmp_path / "a.examples"),
        label="label",
        features="item",
        lists="user,history",
        dense="price",
        time="time_s",
        model="lr",
    )
    index = DataIndex.build([options.data])
    data = Dataset(index, options.columns(), batch_size=128)
    read = data.batch(0)
    assert len(read.examples) == 128
    assert read.examples.newest_s == 1_700_000_001
    expected = mg.hash_ids(made[0].batch.ids["item"])
    np.testing.assert_array_equal(read.examples.ids["item"].values[:100], expected)


def test_what_a_batch_lacks_is_missing(tmp_path):
    first = FeatureBatch({"a": [5], "b": [[1, 2]]}, np.ones(1, np.float32))
    second = FeatureBatch({"c": mg.Ragged([7], [0, 0, 1])}, np.zeros(2, np.float32))
    write_example_batches(tmp_path / "a.examples", [InputBatch(first, b"", 9), second])
    assert whole(tmp_path / "a.examples").to_pylist() == [
        {"a": 5, "b": [1, 2], "c": None, "label": 1.0, "time_s": 9},
        {"a": None, "b": [], "c": None, "label": 0.0, "time_s": None},
        {"a": None, "b": [], "c": 7, "label": 0.0, "time_s": None},
    ]


def test_text_is_a_column_and_no_ids(tmp_path):
    message = pb.ExampleBatch(num_examples=2)
    message.features.add(feature="city", texts=[b"Bern", b"Rom"])
    write_records(tmp_path / "a.examples", [message.SerializeToString()])
    assert whole(tmp_path / "a.examples")["city"].to_pylist() == [b"Bern", b"Rom"]
    with pytest.raises(DtypeMismatch, match="feature city: the task takes ids"):
        ExampleBatches(str(tmp_path / "a.examples"))[0]


def test_a_batch_without_labels_is_not_trained(tmp_path):
    message = pb.ExampleBatch(num_examples=2)
    message.features.add(feature="user", integers=np.arange(2).tobytes())
    write_records(tmp_path / "a.examples", [message.SerializeToString()])
    batches = ExampleBatches(str(tmp_path / "a.examples"))

    class Task(FeatureTask):
        features = (mg.Feature("user", (mg.Slice("bias", 1),)),)

        def read(self, mode, index, count):
            return batches.read(index, count)

    with pytest.raises(BadData, match=r"2 of 2 labels are outside 0..1, the first is nan"):
        local_train(Task())


@pytest.mark.parametrize(
    ("size", "labels", "complaint"),
    [
        (3, 2, "labels: 8 bytes, but shape .3. of float32 needs 12"),
        (-1, 0, "num_examples is -1"),
        (3, 0, "feature user has 2 examples, but num_examples is 3"),
        (2, 2, "dense column x: 1 bytes"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(tmp_path, size, labels, complaint):
    message = pb.ExampleBatch(num_examples=size, labels=np.zeros(labels, np.float32).tobytes())
    message.features.add(feature="user", integers=np.arange(2).tobytes())
    if size == 2:
        message.dense_columns.add(column="x", values=b"1")
    write_records(tmp_path / "a.examples", [message.SerializeToString()])
    with pytest.raises(BadData, match=f"a.examples, block 0, record 0: {complaint}"):
        index_file(str(tmp_path / "a.examples"))
    with pytest.raises(BadData, match=f"a.examples, byte 0: {complaint}"):
        ExampleBatches(str(tmp_path / "a.examples"))[0]


def test_names_occur_once(tmp_path):
    for ids, dense in (({"label": [1]}, ["x"]), ({"x": [1]}, ["x"]), ({"a": [1]}, ["time_s"])):
        batch = FeatureBatch(ids, np.zeros(1, np.float32), np.zeros((1, 1), np.float32))
        with pytest.raises(BadData, match="names two columns"):
            write_example_batches(tmp_path / "a.examples", [batch], dense)
    with pytest.raises(ShapeMismatch, match="1 dense columns, but 2 names"):
        write_example_batches(tmp_path / "a.examples", [batch], ["x", "y"])


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "a.examples"
    write_example_batches(path, numbered_batches(np.random.default_rng(4), 3, 20))
    content = bytearray(path.read_bytes())
    batches = ExampleBatches(str(path))
    content[60] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadData, match=r"a.examples, byte 0: the checksum of record 0 is wrong"):
        batches[0]
    path.write_bytes(content[:-5])
    with pytest.raises(BadData, match="there is no whole record at byte"):
        ExampleBatches(str(path))
    write_records(path, [b"\xff\xff"])
    with pytest.raises(BadData, match="block 0, record 0 is no ExampleBatch"):
        index_file(str(path))


@pytest.mark.golden("G13")
def test_ten_examples_of_a_file_have_the_shapes_of_the_layouts_of_a_file(tmp_path):
    row = (mg.Slice("bias", 1), mg.Slice("vec", 4), mg.Slice("user_only", 3))
    users = [mg.Feature(f"user{k}", row, slot=k, fid_layout=mg.V1) for k in range(1, 4)]
    items = [mg.Feature(f"item{k}", row, slot=k) for k in range(4, 6)]
    ffm = [mg.Feature(f"ffm{k}", (mg.Slice("user_only", 3),), slot=k) for k in range(6, 11)]
    history = mg.Feature("history", (mg.Slice("seq", 2),), slot=11, combiner=mg.FirstN(3))
    main = [feature.name for feature in (*users, *items)]
    layouts = {
        "bias": mg.Layout.concat(*(f"{name}.bias" for name in main)),
        "vec": mg.Layout.concat(*(f"{name}.vec" for name in main)),
        "user_only": mg.Layout.stack(*(f"{f.name}.user_only" for f in (*users, *ffm))),
        "uffm": mg.Layout.none(*(f"{f.name}.vec" for f in users)),
        "iffm": mg.Layout.none(*(f"{f.name}.vec" for f in items)),
        "seq": mg.Layout.none("history"),
    }
    configs = tmp_path / "model.configs"
    configs.write_text(mg.feature_configs_to_text([*users, *items, *ffm, history], layouts))

    ids = {user.name: mg.Ragged.shared(user.fids([42])) for user in users}
    for feature in (*items, *ffm, history):
        ids[feature.name] = feature.fids(np.arange(10))
    path = tmp_path / "a.examples"
    write_example_batches(path, [FeatureBatch(ids, np.zeros(10, np.float32))])

    message = pb.ExampleBatch.FromString(path.read_bytes()[12:-4])
    assert message.num_examples == 10
    by_name = {one.feature: np.frombuffer(one.integers, np.int64) for one in message.features}
    assert by_name["user3"].tolist() == [3 << 54 | 42], "a shared feature has one entry"
    assert by_name["item4"].tolist() == [4 << 48 | k for k in range(10)]

    shapes = {}

    class Shapes(FeatureTask):
        def __init__(self):
            self.features, self.layouts = mg.feature_configs_from_text(configs.read_text())
            self._batches = ExampleBatches(str(path))

        def read(self, mode, index, count):
            return self._batches.read(index, count)

        def step(self, batch, layouts, variables):
            for name, found in layouts.items():
                parts = found if isinstance(found, tuple) else [found]
                shapes[name] = [part.shape for part in parts]
            return StepOutput(0.0, layouts)

    run = local_train(Shapes(), evaluates=False)
    assert run.examples == 10
    assert shapes == {
        "bias": [(10, 5)],
        "vec": [(10, 20)],
        "user_only": [(10, 8, 3)],
        "uffm": [(10, 4)] * 3,
        "iffm": [(10, 4)] * 2,
        "seq": [(10, 3, 2)],
    }
