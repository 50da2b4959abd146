"""TFRecord files of tf.train.Example, against protobuf's own reading of the same bytes."""

import numpy as np
import pyarrow as pa
import pytest

from megalith.errors import BadData
from megalith.protos import example_pb2
from megalith.tasks.ctr_options import CtrOptions
from megalith.tasks.input import tf_records
from megalith.tasks.input.blocks import index_file, read_block, schema_of
from megalith.tasks.input.dataset import Dataset
from megalith.tasks.input.ffm import generate_ffm_example, slot_to_key
from megalith.tasks.input.index import DataIndex
from megalith.tasks.input.tf_records import write_records


def example(**features):
    made = example_pb2.Example()
    for name, values in features.items():
        feature = made.features.feature[name]
        if values and isinstance(values[0], float):
            feature.float_list.value.extend(values)
        elif values and isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return made.SerializeToString()


def whole(path):
    file = index_file(str(path))
    schema = schema_of(file)
    tables = [read_block(file, block, schema) for block in range(len(file.rows))]
    return pa.concat_tables(tables)


def random_examples(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        ids = rng.integers(-(2**63), 2**63, rng.integers(0, 6)).tolist()
        texts = [bytes(rng.integers(0, 256, rng.integers(0, 20)).tolist()) for _ in range(3)]
        features = {"ids": ids, "texts": texts, "label": [float(rng.integers(0, 2))]}
        if rng.random() < 0.8:
            features["one"] = [int(rng.integers(0, 1000))]
        yield example(**features)


def test_all_kinds_of_values_are_those_that_protobuf_reads(tmp_path):
    made = list(random_examples(3000, 1))
    write_records(tmp_path / "a.tfrecord", made)
    table = whole(tmp_path / "a.tfrecord")
    assert table.schema.names == ["ids", "label", "one", "texts"]
    assert table.schema.field("one").type == pa.int64()
    assert table.schema.field("texts").type == pa.list_(pa.binary())

    for row, encoded in zip(table.to_pylist(), made, strict=True):
        features = example_pb2.Example.FromString(encoded).features.feature
        assert row["ids"] == list(features["ids"].int64_list.value)
        assert row["texts"] == list(features["texts"].bytes_list.value)
        assert row["label"] == features["label"].float_list.value[0]
        one = list(features["one"].int64_list.value)
        assert [row["one"]] == (one or [None])


def test_values_one_by_one_are_read_like_packed_ones(tmp_path):
    # Feature{int64_list{value: 5, value: -1}} and {float_list{value: 0.5}} without packing.
    ints = b"\x1a\x0d\x08\x05\x08" + b"\xff" * 9 + b"\x01"
    floats = b"\x12\x05\x0d" + np.float32(0.5).tobytes()
    entries = b""
    for key, feature in ((b"i", ints), (b"f", floats)):
        entry = b"\x0a\x01" + key + b"\x12" + bytes([len(feature)]) + feature
        entries += b"\x0a" + bytes([len(entry)]) + entry
    write_records(tmp_path / "a.tfrecord", [b"\x0a" + bytes([len(entries)]) + entries])
    assert whole(tmp_path / "a.tfrecord").to_pylist() == [{"f": 0.5, "i": [5, -1]}]


def test_blocks_divide_a_file_of_300_000_records(tmp_path, monkeypatch):
    monkeypatch.setattr(tf_records, "_BLOCK_BYTES", 1 << 20)
    made = [example(n=[number], label=[float(number % 2)]) for number in range(300_000)]
    write_records(tmp_path / "a.tfrecords", made)
    file = index_file(str(tmp_path / "a.tfrecords"))
    assert len(file.rows) > 5
    assert sum(file.rows) == 300_000
    assert whole(tmp_path / "a.tfrecords").column("n").to_pylist() == list(range(300_000))


def test_ffm_examples_have_the_ids_of_their_slots():
    rng = np.random.default_rng(3)
    vocab_sizes = [10, 7, 3]
    lengths = set()
    for _ in range(300):
        made = example_pb2.Example.FromString(generate_ffm_example(vocab_sizes, 5, rng))
        features = made.features.feature
        assert list(features["label"].float_list.value) == [0.0]
        for slot, size in enumerate(vocab_sizes):
            ids = list(features[slot_to_key(slot)].int64_list.value)
            assert all(10 * slot <= each < 10 * slot + size for each in ids)
            lengths.add(len(ids))
    assert lengths == {1, 2, 3, 4, 5}
    assert slot_to_key(2) == "feature_2"


def test_ffm_examples_are_trained_like_any_other_file(tmp_path):
    rng = np.random.default_rng(3)
    made = [generate_ffm_example([100, 50], 5, rng) for _ in range(500)]
    write_records(tmp_path / "ffm.tfrecord", made)
    options = CtrOptions(data="x.csv", label="label", lists="feature_0,feature_1", features="")
    index = DataIndex.build([str(tmp_path / "ffm.tfrecord")])
    batch = Dataset(index, options.columns(), batch_size=100).batch(2)
    assert len(batch.examples) == 100
    lengths = np.diff(batch.examples.ids["feature_0"].row_splits)
    assert lengths.min() >= 1
    assert lengths.max() <= 5
    assert batch.where.endswith("ffm.tfrecord, block 0")


def test_a_wrong_checksum_is_named(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_records(path, [example(n=[number]) for number in range(100)])
    content = bytearray(path.read_bytes())
    size = len(content) // 100
    content[50 * size + 14] ^= 1  # inside the data, which is behind 12 bytes
    path.write_bytes(content)
    file = index_file(str(path))
    with pytest.raises(BadData, match=r"a.tfrecord, block 0: the checksum of record 50"):
        schema_of(file)


@pytest.mark.parametrize("cut", [1, 5, 17])
def test_a_file_that_was_cut_is_named(tmp_path, cut):
    path = tmp_path / "a.tfrecord"
    write_records(path, [example(n=[number]) for number in range(100)])
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(BadData, match=r"a.tfrecord: there is no whole record at byte"):
        index_file(str(path))


def test_records_that_are_no_examples_are_named(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_records(path, [example(n=[1]), b"\xff\xff\xff"])
    with pytest.raises(BadData, match=r"record 1 is no tf.train.Example"):
        schema_of(index_file(str(path)))


def test_a_malformed_record_beyond_the_sample_is_named(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_records(path, [*[example(n=[1])] * 1500, b"\x0a\x05\x0a"])
    with pytest.raises(BadData, match=r"record 1500 is no tf.train.Example"):
        schema_of(index_file(str(path)))


def test_a_feature_of_two_kinds_is_named(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_records(path, [example(n=[1]), example(n=[b"x"])])
    with pytest.raises(BadData, match=r"column n: record 1 has bytes, and others have int64"):
        schema_of(index_file(str(path)))


def test_a_second_value_in_a_column_of_single_values_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tf_records, "_BLOCK_BYTES", 1000)
    path = tmp_path / "a.tfrecord"
    write_records(path, [*[example(n=[1])] * 500, example(n=[1, 2])])
    file = index_file(str(path))
    schema = schema_of(file)
    with pytest.raises(BadData, match=r"column n: record \d+ has 2 values"):
        read_block(file, len(file.rows) - 1, schema)
