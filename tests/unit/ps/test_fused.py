import numpy as np
import pytest

from megalith.ps.fused import TableGroup
from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.table import EmbeddingTable
from megalith.wire.errors import (
    InvalidRequest,
    InvalidSetting,
    MalformedArray,
    NonFiniteValue,
    ShapeMismatch,
    UnknownTable,
)
from megalith.wire.schema import Adagrad, Dc, OneBit, Segment, Sgd, TableConfig, Zeros


def group(*dims: int) -> TableGroup:
    return TableGroup(
        {
            f"t{i}": EmbeddingTable(TableConfig(f"t{i}", (Segment(d, Zeros(), Sgd()),)))
            for i, d in enumerate(dims)
        }
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
    np.testing.assert_allclose(
        tables.lookup(keys, sizes).embeddings, [1.1, 0.2, 0.2, 1.1, 0.2, 0.2], rtol=1e-6
    )


def test_golden_cluster_fused_lookup_and_apply_gradient() -> None:
    """cluster.md 7.4: two tables, two shards; the floats of shard 0 first, then what SGD at rate 1 leaves."""
    tables, keys, sizes = group(1, 2), ids(1, 3, 2, 4), np.ones(4, np.int32)
    tables["t0"].assign(ids(1, 2), np.array([[1], [2]], np.float32))
    tables["t1"].assign(ids(3, 4), np.array([[3, 3], [4, 4]], np.float32))
    rows = tables.lookup(keys, sizes)
    assert rows.embeddings.tolist() == [1, 3, 3, 2, 4, 4]
    assert rows.emb_splits.tolist() == [3, 3]
    assert (rows.id_offsets.tolist(), rows.emb_offsets.tolist()) == (
        [0, 1, 2, 3, 4],
        [0, 1, 3, 4, 6],
    )
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


def whole(tables: TableGroup) -> list[bytes]:
    return [
        array.tobytes()
        for name in tables.names
        for array in tables[name].dump(with_expired=True)[1:]
    ]


SIZES = np.array([1, 1], np.int32)
BAD_CALLS = {
    "a NaN gradient": (
        NonFiniteValue,
        "table t1",
        lambda t: t.apply_gradients(ids(1, 2), SIZES, floats(1, np.nan)),
    ),
    "a NaN rate": (
        NonFiniteValue,
        "rates",
        lambda t: t.apply_gradients(ids(1, 2), SIZES, floats(1, 1), [1, np.nan]),
    ),
    "a sum that overflows": (
        NonFiniteValue,
        "table t1: gradients summed by key",
        lambda t: t.apply_gradients(
            ids(1, 2, 2), np.array([1, 2]), floats(1, 3e38, 3e38), dedup=True
        ),
    ),
    "an inf value": (
        NonFiniteValue,
        "table t1",
        lambda t: t.assign(ids(1, 2), SIZES, floats(1, np.inf)),
    ),
    "an inf to add": (
        NonFiniteValue,
        "table t1",
        lambda t: t.assign_add(ids(1, 2), SIZES, floats(1, np.inf)),
    ),
    "a negative time": (
        InvalidRequest,
        "time -1",
        lambda t: t.assign(ids(1, 2), SIZES, floats(1, 1), -1),
    ),
    "a negative step": (
        InvalidRequest,
        "step -1",
        lambda t: t.apply_gradients(ids(1, 2), SIZES, floats(1, 1), step=-1),
    ),
    "more sizes than ids": (
        ShapeMismatch,
        "add up to 3",
        lambda t: t.lookup(ids(1, 2), np.array([1, 2])),
    ),
    "half a shard": (
        ShapeMismatch,
        "not those of shards",
        lambda t: t.lookup(ids(1, 2, 3), np.array([1, 1, 1])),
    ),
    "a negative size": (
        ShapeMismatch,
        "not those of shards",
        lambda t: t.lookup(ids(1), np.array([2, -1])),
    ),
    "sizes of floats": (
        ShapeMismatch,
        "not those of shards",
        lambda t: t.lookup(ids(1, 2), np.array([1.5, 0.5])),
    ),
    "a rate too few": (
        ShapeMismatch,
        "2 segments",
        lambda t: t.apply_gradients(ids(1, 2), SIZES, floats(1, 1), [1]),
    ),
    "ids of int32": (
        MalformedArray,
        "int32",
        lambda t: t.assign(ids(1, 2).astype(np.int32), SIZES, floats(1, 1)),
    ),
    "floats of float64": (
        MalformedArray,
        "float64",
        lambda t: t.assign(ids(1, 2), SIZES, np.ones(2)),
    ),
    "a float too few": (
        MalformedArray,
        r"\(2,\)",
        lambda t: t.apply_gradients(ids(1, 2), SIZES, floats(1)),
    ),
    "every second float": (
        MalformedArray,
        "packed",
        lambda t: t.assign(ids(1, 2), SIZES, floats(1, 2, 3, 4)[::2]),
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_fused_call_changes_no_table(case: str) -> None:
    tables = group(1, 1)
    tables.assign(ids(1, 2), SIZES, floats(5, 6), 100)
    before = whole(tables)
    error, message, call = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        call(tables)
    assert whole(tables) == before
    assert [tables[name].max_update_s for name in tables.names] == [100, 100]


def test_a_group_of_no_tables_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="no tables"):
        TableGroup({})


def test_rates_follow_the_order_of_names_and_times_reach_every_table() -> None:
    """The reference concatenates rates in another order than tables, and drops the time of an assign."""
    segments = {
        "b": (Segment(1, Zeros(), Sgd()),),
        "a": (Segment(1, Zeros(), Sgd()), Segment(1, Zeros(), Sgd())),
    }
    tables = TableGroup(
        {name: EmbeddingTable(TableConfig(name, parts)) for name, parts in segments.items()}
    )
    tables.apply_gradients(ids(1, 2), SIZES, floats(1, 1, 1), [1, 2, 3], req_time_s=70)
    assert tables["a"].lookup(ids(1)).tolist() == [[-1, -2]]
    assert tables["b"].lookup(ids(2)).tolist() == [[-3]]
    tables.assign(ids(1, 2), SIZES, floats(1, 1, 1), 80)
    assert [
        int(tables[name].lookup_entry(ids(key)).times[0]) for name, key in (("a", 1), ("b", 2))
    ] == [80, 80]


def test_the_step_reaches_every_table() -> None:
    one_bit = EmbeddingTable(
        TableConfig("a", (Segment(1, Zeros(), Sgd(0.0), OneBit(step_size=1000)),))
    )
    tables = TableGroup({"a": one_bit})
    tables.assign(ids(1), np.array([1]), floats(1))
    tables.apply_gradients(ids(1), np.array([1]), floats(1), step=1000)
    np.testing.assert_allclose(one_bit.lookup(ids(1)), [[0.1 * np.tanh(np.sqrt(6))]], rtol=1e-6)


def test_every_request_of_a_stacked_lookup_reads_its_own_ids() -> None:
    """The reference reads those of the first for all."""
    tables = group(1, 1)
    tables.assign(ids(1, 2, 3, 4), np.array([2, 2]), floats(10, 20, 30, 40))
    rows = tables.lookup(ids(1, 3, 2, 4, 9, 9), np.ones(6, np.int32))
    assert rows.embeddings.tolist() == [10, 30, 20, 40, 0, 0]


def test_results_are_those_of_the_pieces_and_a_piece_without_ids_leaves_its_table_alone() -> None:
    tables = group(1, 1)
    sizes = np.array([2, 0, 1, 0], np.int32)
    results = tables.apply_gradients(ids(1, 2, 2), sizes, floats(1, 1, 1), req_time_s=50)
    assert [result.created for result in results] == [2, 0, 0, 0]
    assert (tables["t0"].max_update_s, tables["t1"].max_update_s) == (50, 0)


def test_dedup_sums_within_a_piece_and_a_table_with_dc_takes_rows_of_twice_its_width() -> None:
    plain = EmbeddingTable(TableConfig("a", (Segment(1, Zeros(), Adagrad()),)))
    compensated = EmbeddingTable(TableConfig("b", (Segment(1, Zeros(), Dc(Sgd(1.0), 0.5)),)))
    tables = TableGroup({"a": plain, "b": compensated})
    tables.apply_gradients(ids(1, 1, 2), np.array([2, 1]), floats(1, 1, 3, 0.5), [1, 1], dedup=True)
    np.testing.assert_allclose(plain.lookup(ids(1)), [[-2 / np.sqrt(4.1)]], rtol=1e-6)
    np.testing.assert_allclose(
        compensated.lookup(ids(2)), [[-(3 + 0.5 * 9 * (0 - 0.5))]], rtol=1e-6
    )
