"""Golden cases of pooling and partitioning, each on the function that does that work here.

Where Monolith has an operation of its own for a step, several of them meet in one here; the numbers
are the same. What only names a place in its buffers (finalize_shared_tensor) has nothing to stand
for, and the reversed order of reorder_by_indices is by first appearance here, as everywhere else.
The table side (fused_lookup, fused_apply_gradient) is in tests/unit/ps/test_several_tables.py, what
is sent to each server in test_plans.py.
"""

import numpy as np
import pytest

from megalith.client import Feature, FeatureSet, FirstN, Layout, Mean, Ragged, Slice, Sqrtn, Sum
from megalith.client._kernels import rows as row_kernels
from megalith.kernels import distinct
from support.rows import RecordedRows


def feature_set(table, combiner, dims=(1,)):
    rows = RecordedRows(dict(enumerate(table)))
    slices = tuple(Slice(f"s{k}", dim) for k, dim in enumerate(dims))
    layouts = {"out": Layout.none(*(f"f.s{k}" for k in range(len(dims))))}
    return FeatureSet(rows, (Feature("f", slices, combiner=combiner),), layouts), rows


def pooled(table, splits, combiner, dims):
    """Row i of the table is value i of the batch."""
    model, rows = feature_set(table, combiner, dims)
    batch = model.lookup({"f": Ragged(np.arange(len(table)), np.array(splits))})
    return [part.tolist() for part in batch.parts("out")], (model, batch, rows)


def trained(model, batch, rows, gradients):
    model.apply(batch, {"out": tuple(np.array(gradient, np.float32) for gradient in gradients)})
    return [rows.pushed()[key] for key in sorted(rows.pushed())]


@pytest.mark.golden("CombinerTest.testReduceSum")
def test_sum_adds_the_rows_of_an_example():
    assert pooled([[1], [2], [3]], [0, 1, 3], Sum(), (1,))[0] == [[[1], [5]]]


@pytest.mark.golden("CombinerTest.testFirstN")
def test_first_n_cuts_and_pads_sequences():
    outputs, _ = pooled([[1], [2], [3], [4], [5], [6]], [0, 1, 3, 6], FirstN(2), (1,))
    assert outputs == [[[[1], [0]], [[2], [3]], [[4], [5]]]]


@pytest.mark.golden(
    "DistributionOpsTest.test_reduce_mean", "DistributionOpsTest.test_reduce_mean_gradient"
)
def test_mean_divides_rows_and_gradients_by_their_number():
    outputs, _ = pooled([[4, 4], [2, 2], [1, 1]], [0, 2, 3], Mean(), (2,))
    assert outputs == [[[3, 3], [1, 1]]]
    _, context = pooled([[4, 4], [2, 2]], [0, 2], Mean(), (2,))
    assert trained(*context, [[[-2, -2]]]) == [[-1, -1], [-1, -1]]


@pytest.mark.golden(
    "DistributionOpsTest.test_reduce_sum", "DistributionOpsTest.test_reduce_sum_gradient"
)
def test_sum_hands_each_row_the_whole_gradient():
    outputs, context = pooled([[1, 1], [2, 2], [4, 4]], [0, 2, 3], Sum(), (2,))
    assert outputs == [[[3, 3], [4, 4]]]
    assert trained(*context, [[[-1, -1], [-1, -1]]]) == [[-1, -1]] * 3


@pytest.mark.golden(
    "DistributionOpsTest.test_reduce_sqrtn",
    "DistributionOpsTest.test_reduce_sqrtn_gradient",
    "DistributionOpsTest.test_reduce_sqrtn_gradient_zero",
)
def test_sqrtn_is_the_root_of_squares_and_its_gradient_is_finite_at_zero():
    outputs, _ = pooled([[3, 3], [4, 4], [4, 4]], [0, 2, 3], Sqrtn(), (2,))
    assert outputs == [[[5, 5], [4, 4]]]
    _, context = pooled([[3, 4], [4, 3]], [0, 2], Sqrtn(), (2,))
    np.testing.assert_allclose(
        trained(*context, [[[-1, -1]]]), [[-0.6, -0.8], [-0.8, -0.6]], rtol=1e-6
    )
    _, context = pooled([[0, 0], [0, 0]], [0, 2], Sqrtn(), (2,))
    assert trained(*context, [[[-1, -1]]]) == [[0, 0], [0, 0]]


@pytest.mark.golden("DistributionOpsTest.test_fused_reduce_sum_and_split")
def test_sums_are_split_into_the_columns_of_slices():
    outputs, context = pooled([[1, 1, 1], [2, 2, 1], [4, 4, 2]], [0, 2, 2, 3, 3], Sum(), (1, 2))
    assert outputs == [[[3], [0], [4], [0]], [[3, 2], [0, 0], [4, 2], [0, 0]]]
    assert trained(*context, [np.ones((4, 1)), np.ones((4, 2))]) == [[1, 1, 1]] * 3


@pytest.mark.golden("DistributionOps.fused_sorted_segment_sum")
def test_an_example_without_ids_sums_to_zeros():
    rows = np.arange(20).reshape(4, 5)
    outputs, _ = pooled(rows.tolist(), [0, 2, 2, 4], Sum(), (5,))
    assert outputs == [[(rows[0] + rows[1]).tolist(), [0] * 5, (rows[2] + rows[3]).tolist()]]


@pytest.mark.golden("EmbeddingTest.test_fused_factory")
def test_each_slice_of_a_feature_is_pooled():
    outputs, _ = pooled([[1, 2], [2, 3], [3, 5]], [0, 1, 1, 3], Sum(), (1, 1))
    assert outputs == [[[1], [0], [5]], [[2], [0], [8]]]


@pytest.mark.golden("EmbeddingTest.test_fused_factory_with_seq_features_larger_than_max_seq_length")
def test_sequences_longer_than_the_limit_are_cut_in_every_slice():
    outputs, _ = pooled([[1, 2], [2, 3], [3, 5], [10, 11]], [0, 1, 1, 4], FirstN(2), (1, 1))
    assert outputs == [[[[1], [0]], [[0], [0]], [[2], [3]]], [[[2], [0]], [[0], [0]], [[3], [5]]]]


@pytest.mark.golden("EmbeddingTest.test_factory_with_seq_features")
def test_a_slice_of_sequences_has_the_columns_of_each_position():
    outputs, _ = pooled([[1, 2], [3, 4], [5, 6], [7, 8]], [0, 2, 4], FirstN(2), (1, 1))
    assert outputs[0] == [[[1], [3]], [[5], [7]]]


@pytest.mark.golden(
    "DistributionOpsTest.test_unique_key_with_value_and_offset_and_fill_with_offset_map"
)
def test_a_feature_set_pulls_ids_once_fills_every_use_and_sums_gradients():
    """Keys [[], [0,1,2,1,0], [0,1,0], []] of widths 1..4: distinct ones pulled, uses filled,
    gradients summed."""
    rows = RecordedRows({100: [0, 1], 101: [2, 3], 102: [4, 5], 200: [6, 7, 8], 201: [9, 10, 11]})
    features = [Feature(f"k{dim}", (Slice("v", dim),), combiner=FirstN(5)) for dim in (1, 2, 3, 4)]
    model = FeatureSet(rows, features)
    batch = model.lookup(
        {"k1": [[]], "k2": [[100, 101, 102, 101, 100]], "k3": [[200, 201, 200]], "k4": [[]]}
    )
    assert rows.pulls == [{"k2": [100, 101, 102], "k3": [200, 201]}]
    filled = [*batch["k2"].flat, *batch["k3"][0, :3].flat]
    assert filled == [0, 1, 2, 3, 4, 5, 2, 3, 0, 1, 6, 7, 8, 9, 10, 11, 6, 7, 8]
    gradient = np.arange(19, dtype=np.float32)
    padded = np.concatenate([gradient[10:].reshape(3, 3), np.zeros((2, 3), np.float32)])
    model.apply(batch, {"k2": gradient[:10].reshape(1, 5, 2), "k3": padded.reshape(1, 5, 3)})
    summed = [value for key in sorted(rows.pushed()) for value in rows.pushed()[key]]
    assert summed == [8, 10, 8, 10, 4, 5, 26, 28, 30, 13, 14, 15]


@pytest.mark.golden("DistributionOps.map_id_to_embedding")
def test_each_id_gets_its_row_and_the_sum_of_its_gradients():
    model, rows = feature_set([[0, 0], [1, 1], [2, 2]], Sum(), (2,))
    assert model.lookup({"f": [[1], [2]]})["out"].tolist() == [[1, 1], [2, 2]]
    batch = model.lookup({"f": [1, 1, 2]})
    assert trained(model, batch, rows, [np.full((3, 2), -1)]) == [[-2, -2], [-1, -1]]


@pytest.mark.golden("DistributionOps.gather_embeddings_by_input")
def test_rows_are_gathered_in_the_order_of_the_input():
    model, rows = feature_set([[0, 0], [1, 1], [2, 2], [3, 3]], Sum(), (2,))
    assert model.lookup({"f": [2, 1, 2]})["out"].tolist() == [[2, 2], [1, 1], [2, 2]]
    batch = model.lookup({"f": [1, 2, 1]})
    assert trained(model, batch, rows, [np.full((3, 2), -1)]) == [[-2, -2], [-1, -1]]
    out = np.zeros((3, 1), np.float32)
    row_kernels.add(
        np.array([[1], [2], [4], [8]], np.float32), np.array([1, 0, 1, 2], np.int32), out
    )
    assert out.tolist() == [[2], [5], [8]]


def split(keys, servers, num_servers):
    """Keys sorted by server, their sizes, and where each went."""
    counts = np.bincount(servers, minlength=num_servers)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    ordered, places = np.empty(keys.size, np.int64), np.empty(keys.size, np.int32)
    distinct.sort_by_server(keys, servers.astype(np.int32), starts, ordered, places)
    return ordered, counts, places


@pytest.mark.golden("DistributionOps.split_by_indices")
def test_ids_split_by_server_keep_their_order():
    keys = np.array([0, 1, 2, 2, 3])
    ordered, counts, places = split(keys, keys % 3, 3)
    assert (ordered.tolist(), counts.tolist()) == ([0, 3, 1, 2, 2], [2, 1, 2])
    assert ordered[places].tolist() == keys.tolist()
    assert split(keys[:0], keys[:0], 3)[0].tolist() == []


@pytest.mark.golden("DistributionOps.reorder_by_indices")
@pytest.mark.parametrize(
    ("ids", "servers", "ordered", "sizes"),
    [
        ([0, 1, 2, 2, 3, 5], [0, 1, 2, 2, 0, 2], [0, 3, 1, 2, 5], [2, 1, 2]),
        ([1, 2, 3, 2], [1, 0, 1, 0], [2, 1, 3], [1, 2]),
    ],
)
def test_distinct_ids_are_ordered_by_server_and_first_appearance(ids, servers, ordered, sizes):
    """Monolith has [3,0,1,5,2] and [2,3,1]: the same ids for each server, the last to appear
    first."""
    keys, numbers = np.empty(len(ids), np.int64), np.empty(len(ids), np.int32)
    count = distinct.distinct(distinct.SECRET, np.array(ids), keys, numbers)
    first = np.array([ids.index(key) for key in keys[:count].tolist()])
    found, counts, _ = split(keys[:count], np.array(servers)[first], len(sizes))
    assert (found.tolist(), counts.tolist()) == (ordered, sizes)


@pytest.mark.golden("DistributionOps.fused_gather_embeddings_by_input")
def test_the_gradients_of_all_uses_of_an_id_are_summed():
    model, rows = feature_set([[0, 0, 0]] * 8, Sum(), (3,))
    batch = model.lookup({"f": [2, 3, 1, 2, 7, 2]})
    gradient = np.array([[i + 0.1, i + 0.2, i + 0.3] for i in range(1, 7)], np.float32)
    model.apply(batch, {"out": gradient})
    np.testing.assert_allclose(rows.pushed()[2], [11.3, 11.6, 11.9], rtol=1e-6)


@pytest.mark.golden("DistributionOps.normalize_merged_split")
def test_joined_requests_have_the_splits_of_one():
    first, second = (
        Ragged(np.arange(9), np.array([0, 2, 5, 5, 9])),
        Ragged(np.arange(4), np.array([0, 0, 3, 4])),
    )
    joined = Ragged.concat([first, second])
    assert joined.row_splits.tolist() == [0, 2, 5, 5, 9, 9, 12, 13]
    assert joined.values.tolist() == [*range(9), *range(4)]
