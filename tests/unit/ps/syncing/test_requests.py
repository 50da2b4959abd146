"""How a push becomes Predict calls."""

from pathlib import Path

import numpy as np
import pytest

from megalith.protos import parameter_sync_pb2 as pb
from megalith.protos.tensorflow_serving_pb2 import PredictRequest
from megalith.ps.syncing.predict import predict_request
from megalith.ps.syncing.request import SyncRequest, TableDelta
from megalith.ps.syncing.splitter import LIMIT_BYTES, split
from support.serving_side import decode

# What a server got on its socket when TensorFlow 2.15.1 with tensorflow-serving-api 2.15.1 called
# PredictionServiceStub.Predict. The tensors were made by tf.make_tensor_proto, of the arrays that
# are in the test below: int64 ids and float32 values of two tables, one of them without rows.
RECORDED = Path("tests/fixtures/tensorflow-serving/predict-request.bin")


def delta(table, ids, values, dim):
    values = np.asarray(values, np.float32).reshape(-1, dim)
    return TableDelta(table, np.asarray(ids, np.int64), values)


def request(*deltas, name="test_model", multi_table=""):
    return SyncRequest(name, "hashtable_assign", 1000, deltas, multi_table)


def push_request(request):
    """The same as Monolith's message."""
    tables = []
    for each in request.deltas:
        table = pb.PushRequest.DeltaEmbeddingHashTable(
            unique_id=each.table,
            dim_size=each.dim,
            fids=each.ids.tolist(),
            embeddings=each.values.ravel().tolist(),
        )
        tables.append(table)
    field = "delta_multi_hash_tables" if request.multi_table else "delta_hash_tables"
    return pb.PushRequest(
        model_name=request.model_name,
        signature_name=request.signature,
        timeout_in_ms=request.timeout_ms,
        **{field: tables},
    )


@pytest.mark.golden("HashTableTest.Basic")
def test_single_tables_are_two_inputs_each():
    both = request(delta("table1", [1, 2], [1, 2, 3, 4], 2), delta("table2", [3], [5], 1))
    model, signature, inputs = decode(predict_request(both).SerializeToString())
    assert (model, signature) == ("test_model", "hashtable_assign")
    assert {name: array.shape for name, array in inputs.items()} == {
        "table1_id": (2,),
        "table1_value": (2, 2),
        "table2_id": (1,),
        "table2_value": (1, 1),
    }
    assert inputs["table1_id"].tolist() == [1, 2]
    assert inputs["table1_value"].tolist() == [[1, 2], [3, 4]]
    assert inputs["table2_id"].tolist() == [3]
    assert inputs["table2_value"].tolist() == [[5]]


@pytest.mark.golden("MultiHashTableTest.Basic")
def test_a_multi_table_is_three_inputs():
    deltas = (delta("a", [1, 2], [1, 2, 3, 4], 2), delta("b", [3], [5], 1))
    message = predict_request(request(*deltas, multi_table="MonolithMultiHashTable_0"))
    _, signature, inputs = decode(message.SerializeToString())
    assert signature == "MonolithMultiHashTable_0/raw_assign"
    assert {name: array.tolist() for name, array in inputs.items()} == {
        "id": [1, 2, 3],
        "id_split": [0, 2, 3],
        "flat_value": [1, 2, 3, 4, 5],
    }


def test_a_push_is_the_request_that_a_client_of_tensorflow_serving_sends():
    recorded = RECORDED.read_bytes()
    user = delta("user", [1, -2, 2**62 + 3], [1, 2, 0.5, -3, 0, 1e-30], 2)
    push = predict_request(request(user, delta("item", [], [], 4), name="clicks:ps_0"))
    assert PredictRequest.FromString(recorded) == push
    assert push.SerializeToString(deterministic=True) == recorded

    model, signature, inputs = decode(recorded)
    assert (model, signature) == ("clicks:ps_0", "hashtable_assign")
    assert inputs["user_id"].tolist() == [1, -2, 2**62 + 3]
    assert inputs["user_value"].tolist() == [[1, 2], [0.5, -3], [0, np.float32(1e-30)]]
    assert inputs["item_value"].shape == (0, 4)


def of_0_2_and_3_rows(num_bytes, **settings):
    """A request of exactly that size."""
    deltas = (
        delta("table_0", [], [], 1),
        delta("table_1", [1, 2], [1, 2], 1),
        delta("table_2", [3, 4, 5], [3, 4, 5], 1),
    )
    lacking = num_bytes - request(*deltas, name="", **settings).num_bytes
    found = request(*deltas, name="m" * lacking, **settings)
    assert push_request(found).ByteSize() == found.num_bytes == num_bytes
    return found


def rows(part):
    return [each.ids.size for each in part.deltas]


@pytest.mark.golden("RequestSplitter.NoSplit")
def test_a_small_request_is_sent_as_it_is():
    small = of_0_2_and_3_rows(111)
    assert split(small) == [small]
    assert LIMIT_BYTES == 4194304


def assert_split_in_two(whole):
    parts = split(whole, 60)
    assert [rows(part) for part in parts] == [[0, 1, 1], [0, 1, 2]]
    assert [part.deltas[2].ids.tolist() for part in parts] == [[3], [4, 5]]
    assert [part.deltas[2].values.tolist() for part in parts] == [[[3]], [[4], [5]]]
    for part in parts:
        assert (part.model_name, part.timeout_ms) == (whole.model_name, 1000)
        assert part.multi_table == whole.multi_table
        assert [each.dim for each in part.deltas] == [1, 1, 1]


@pytest.mark.golden("RequestSplitter.SplitIntoTwo")
def test_a_request_of_111_bytes_is_split_in_two_by_a_limit_of_60():
    assert_split_in_two(of_0_2_and_3_rows(111))


@pytest.mark.golden("RequestSplitter.MultiHashTableSplitIntoTwo")
def test_a_multi_table_request_of_113_bytes_is_split_in_the_same_way():
    assert_split_in_two(of_0_2_and_3_rows(113, multi_table="m"))


def test_with_fewer_rows_than_parts_all_rows_are_in_the_last():
    parts = split(request(delta("t", [1, 2], np.ones(2000), 1000)), 1000)
    assert [part.rows for part in parts] == [0] * (len(parts) - 1) + [2]


@pytest.mark.parametrize("bits", [6, 7, 13, 14, 31, 32, 62, 63])
def test_the_size_is_that_of_monolith_s_message(bits):
    rng = np.random.default_rng(bits)
    ids = rng.integers(-(2**bits), 2**bits - 1, 1000)
    whole = request(delta("täble", ids, rng.random(3000), 3), delta("u", [], [], 200))
    assert whole.num_bytes == push_request(whole).ByteSize()


def test_parts_hold_every_row_once_and_stay_near_the_limit():
    ids = np.random.default_rng(1).integers(0, 2**62, 300_000)
    values = np.random.default_rng(2).random((300_000, 8), np.float32)
    parts = split(request(TableDelta("t", ids, values)))
    sent = np.concatenate([part.deltas[0].ids for part in parts])
    np.testing.assert_array_equal(sent, ids)
    np.testing.assert_array_equal(np.concatenate([p.deltas[0].values for p in parts]), values)
    assert max(part.num_bytes for part in parts) < 1.001 * LIMIT_BYTES
    assert len(parts) == 3


@pytest.mark.parametrize("multi_table", ["", "many"])
def test_no_call_is_larger_than_a_server_takes_also_with_small_ids(multi_table):
    ids = np.arange(61_680)  # 2 or 3 bytes each in Monolith's message, 8 in the call
    whole = request(
        TableDelta("t", ids, np.ones((ids.size, 16), np.float32)), multi_table=multi_table
    )
    assert whole.num_bytes < LIMIT_BYTES < predict_request(whole).ByteSize()
    parts = split(whole)
    assert [part.rows for part in parts] == [30_840, 30_840]
    assert max(predict_request(part).ByteSize() for part in parts) < LIMIT_BYTES
