import numpy as np
import pytest

from megalith.ps.fused import TableGroup
from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.table import EmbeddingTable
from megalith.wire.errors import NonFiniteValue, ShapeMismatch, UnknownTable
from megalith.wire.schema import Segment, Sgd, TableConfig, Zeros


def group(*dims: int) -> TableGroup:
    return TableGroup(
        {f"t{i}": EmbeddingTable(TableConfig(f"t{i}", (Segment(d, Zeros(), Sgd()),))) for i, d in enumerate(dims)}
    )


def ids(*values: int) -> I64:
    return np.array(values, np.int64)


def floats(*values: float) -> F32:
    return np.array(values, np.float32)


def test_hash_table_ops_fused_lookup() -> None:
    tables = group(1, 1, 2)
    keys = ids(0, 4, 6, 1, 3, 7)
    for name in ("t0", "t2"):
        tables[name].assign(keys, np.ones((6, tables[name].layout.dim), np.float32))
    rows = tables.lookup(keys, np.ones(6, np.int32))
    assert rows.embeddings.tolist() == [1, 0, 1, 1, 1, 0, 1, 1]
    assert rows.emb_splits.tolist() == [4, 4]
    assert rows.id_offsets.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert rows.emb_offsets.tolist() == [0, 1, 2, 4, 5, 6, 8]
    assert rows.ids is keys


def test_hash_table_ops_fused_optimize() -> None:
    tables, keys, sizes = group(1, 2), ids(0, 4, 1, 3), np.ones(4, np.int32)
    tables["t0"].assign(ids(0, 1), np.ones((2, 1), np.float32))
    tables.apply_gradients(keys, sizes, floats(-1, -2, -2, -1, -2, -2), [0.1, 0.1])
    np.testing.assert_allclose(tables.lookup(keys, sizes).embeddings, [1.1, 0.2, 0.2, 1.1, 0.2, 0.2], rtol=1e-6)


def test_golden_cluster_fused_lookup_and_apply_gradient() -> None:
    """cluster.md 7.4: two tables, two shards; the floats of shard 0 first, then what SGD at rate 1 leaves."""
    tables, keys, sizes = group(1, 2), ids(1, 3, 2, 4), np.ones(4, np.int32)
    tables["t0"].assign(ids(1, 2), np.array([[1], [2]], np.float32))
    tables["t1"].assign(ids(3, 4), np.array([[3, 3], [4, 4]], np.float32))
    rows = tables.lookup(keys, sizes)
    assert rows.embeddings.tolist() == [1, 3, 3, 2, 4, 4]
    assert rows.emb_splits.tolist() == [3, 3]
    assert (rows.id_offsets.tolist(), rows.emb_offsets.tolist()) == ([0, 1, 2, 3, 4], [0, 1, 3, 4, 6])
    tables.apply_gradients(keys, sizes, floats(1, 2, 2, 1, 2, 2), [1.0, 1.0])
    assert tables.lookup(keys, sizes).embeddings.tolist() == [0, 1, 1, 1, 2, 2]


def test_multi_type_hash_table_fused_lookup_multi_shards() -> None:
    tables = group(1, 2, 2)
    tables["t0"].assign(ids(0), np.full((1, 1), 1, np.float32))
    tables["t2"].assign(ids(2, 3), np.array([[4, 4], [8, 8]], np.float32))
    tables["t1"].assign(ids(1), np.full((1, 2), 2, np.float32))
    rows = tables.lookup(ids(0, 2, 1, 3), np.array([1, 0, 1, 0, 1, 1], np.int32))
    assert rows.embeddings.tolist() == [1, 4, 4, 2, 2, 8, 8]
    assert rows.emb_splits.tolist() == [3, 4]
    assert rows.id_offsets.tolist() == [0, 1, 1, 2, 2, 3, 4]
    assert rows.emb_offsets.tolist() == [0, 1, 1, 3, 3, 5, 7]


def test_multi_type_hash_table_fused_apply_gradients_missing_tables() -> None:
    tables = group(1, 1)
    tables.apply_gradients(ids(5, 5), np.array([1, 0, 1, 0], np.int32), floats(1, 2), [1, 1])
    assert tables["t0"].lookup(ids(5)) == -3
    assert tables["t1"].size == 0


def test_multi_type_hash_table_lookup_assign_add_reinitialize() -> None:
    tables = group(1, 1)
    tables.assign_add(ids(1, 2, 3), np.array([1, 2], np.int32), floats(1, 2, 3))
    assert tables.reinitialize("t1", ids(1, 2, 3)).tolist() == [0, 1, 1]
    np.testing.assert_array_equal(tables["t1"].lookup(ids(1, 2, 3)), np.zeros((3, 1)))
    assert tables.reinitialize("missing", ids(1, 2, 3)).tolist() == [-1, -1, -1]
    with pytest.raises(UnknownTable, match="missing"):
        tables["missing"]


def test_tables_are_taken_in_the_order_of_their_names() -> None:
    table_b, table_a = (EmbeddingTable(TableConfig(n, (Segment(1, Zeros(), Sgd()),))) for n in "ba")
    tables = TableGroup({"b": table_b, "a": table_a})
    tables.assign(ids(1, 2), np.array([1, 1], np.int32), floats(5, 6))
    assert table_a.lookup(ids(1)) == 5
    assert table_b.lookup(ids(2)) == 6


def test_a_fused_update_with_one_bad_number_changes_no_table() -> None:
    tables = group(1, 1)
    with pytest.raises(NonFiniteValue):
        tables.apply_gradients(ids(1, 2), np.array([1, 1], np.int32), floats(1, np.nan), [1, 1])
    assert tables["t0"].size == 0


def test_fused_sizes_and_rates_that_do_not_fit_are_refused() -> None:
    tables = group(1, 1)
    with pytest.raises(ShapeMismatch, match="add up to 3"):
        tables.lookup(ids(1, 2), np.array([1, 2], np.int32))
    with pytest.raises(ShapeMismatch, match="not those of shards"):
        tables.lookup(ids(1, 2, 3), np.array([1, 1, 1], np.int32))
    with pytest.raises(ShapeMismatch, match="2 segments"):
        tables.apply_gradients(ids(1, 2), np.array([1, 1], np.int32), floats(1, 1), [1])
