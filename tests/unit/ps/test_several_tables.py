"""One request for several tables: what Monolith calls a fused call. Its shards are requests
here."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from megalith.errors import (
    InvalidRequest,
    MalformedArray,
    NonFiniteValue,
    ShapeMismatch,
    UnknownTable,
)
from megalith.kernels.dtypes import F32, I64
from megalith.ps.store.store import Store
from megalith.ps.store.writes import Sender, TableGradients, TableValues
from megalith.schema import Dc, Segment, Sgd, TableConfig, Zeros
from megalith.wire import routing
from megalith.wire.routing import Routing

EPOCH = 1


def ids(*values: int) -> I64:
    return np.array(values, np.int64)


class Tables:
    """A server with the tables t0, t1, ... of these widths, and requests to it by table."""

    def __init__(self, *dims: int) -> None:
        self.store = Store(0)
        self.store.route(Routing(EPOCH, ("a",), routing.even_owners(1)), True)
        self.dims = {f"t{i}": dim for i, dim in enumerate(dims)}
        self.store.create_tables(
            EPOCH,
            [TableConfig(name, (Segment(d, Zeros(), Sgd()),)) for name, d in self.dims.items()],
        )
        self._sequence = 0

    def _rows(self, name: str, values: Sequence[float]) -> F32:
        return np.array(values, np.float32).reshape(-1, self.dims[name])

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def lookup(self, *shards: Mapping[str, Sequence[int]]) -> list[list[F32]]:
        """The rows of each table in each shard."""
        replies = []
        for shard in shards:
            asked = [(name, ids(*keys)) for name, keys in shard.items()]
            rows, _ = self.store.pull(EPOCH, asked, [])
            replies.append(rows)
        return replies

    def assign(
        self,
        parts: Mapping[str, tuple[Sequence[int], Sequence[float]]],
        time_s: int = 0,
        *,
        is_added: bool = False,
    ) -> None:
        values = [TableValues(n, ids(*k), self._rows(n, v)) for n, (k, v) in parts.items()]
        sender = Sender("client", self._next())
        self.store.assign(EPOCH, sender, values, is_added=is_added, req_time_s=time_s)

    def push(
        self,
        parts: Mapping[str, tuple[Sequence[int], Sequence[float]]],
        rates: Mapping[str, tuple[float, ...]] | None = None,
        **settings: int,
    ) -> None:
        rates = rates or {}
        gradients = [
            TableGradients(n, ids(*k), self._rows(n, v), rates.get(n, ()))
            for n, (k, v) in parts.items()
        ]
        self.store.push(EPOCH, Sender("client", self._next()), gradients, [], **settings)

    def reinitialize(self, name: str, keys: I64) -> list[int]:
        sender = Sender("client", self._next())
        return self.store.reinitialize(EPOCH, sender, name, keys).tolist()

    def times(self) -> list[int]:
        return [table.max_update_s for table in self.store.tables()]

    def whole(self) -> list[bytes]:
        chunks = [table.dump(with_expired=True) for table in self.store.tables()]
        return [array.tobytes() for chunk in chunks for array in chunk[1:]]


def floats_of(shards: list[list[F32]]) -> list[float]:
    return [float(value) for rows in shards for row in rows for value in row.reshape(-1)]


def splits_of(shards: list[list[F32]]) -> list[int]:
    return [sum(row.size for row in rows) for rows in shards]


def offsets_of(shards: list[list[F32]]) -> list[int]:
    """The first float of each piece, and the end."""
    return [0, *np.cumsum([row.size for rows in shards for row in rows]).tolist()]


@pytest.mark.golden("HashTableOpsTest.test_fused_lookup")
def test_a_fused_lookup_of_three_tables_gives_the_floats_of_each_shard_in_turn() -> None:
    tables = Tables(1, 1, 2)
    keys = (0, 4, 6, 1, 3, 7)
    tables.assign({"t0": (keys, [1] * 6), "t2": (keys, [1] * 12)})
    shards = tables.lookup({"t0": [0], "t1": [4], "t2": [6]}, {"t0": [1], "t1": [3], "t2": [7]})
    assert floats_of(shards) == [1, 0, 1, 1, 1, 0, 1, 1]
    assert splits_of(shards) == [4, 4]
    assert offsets_of(shards) == [0, 1, 2, 4, 5, 6, 8]


@pytest.mark.golden("HashTableOpsTest.test_fused_optimize")
def test_a_fused_update_trains_every_table_at_its_rate() -> None:
    tables = Tables(1, 2)
    tables.assign({"t0": ([0, 1], [1, 1])})
    rates = {"t0": (0.1,), "t1": (0.1,)}
    tables.push({"t0": ([0], [-1]), "t1": ([4], [-2, -2])}, rates)
    tables.push({"t0": ([1], [-1]), "t1": ([3], [-2, -2])}, rates)
    shards = tables.lookup({"t0": [0], "t1": [4]}, {"t0": [1], "t1": [3]})
    np.testing.assert_allclose(floats_of(shards), [1.1, 0.2, 0.2, 1.1, 0.2, 0.2], rtol=1e-6)


@pytest.mark.golden("DistributionOps.fused_lookup", "DistributionOps.fused_apply_gradient")
def test_a_fused_lookup_and_update_of_two_tables_and_two_shards() -> None:
    """The floats of shard 0 first, then what SGD at rate 1 leaves."""
    tables = Tables(1, 2)
    tables.assign({"t0": ([1, 2], [1, 2]), "t1": ([3, 4], [3, 3, 4, 4])})
    shards = tables.lookup({"t0": [1], "t1": [3]}, {"t0": [2], "t1": [4]})
    assert floats_of(shards) == [1, 3, 3, 2, 4, 4]
    assert splits_of(shards) == [3, 3]
    assert offsets_of(shards) == [0, 1, 3, 4, 6]
    rates = {"t0": (1.0,), "t1": (1.0,)}
    tables.push({"t0": ([1], [1]), "t1": ([3], [2, 2])}, rates)
    tables.push({"t0": ([2], [1]), "t1": ([4], [2, 2])}, rates)
    shards = tables.lookup({"t0": [1], "t1": [3]}, {"t0": [2], "t1": [4]})
    assert floats_of(shards) == [0, 1, 1, 1, 2, 2]


@pytest.mark.golden("MultiTypeHashTableTest.test_fused_lookup_multi_shards")
def test_a_fused_lookup_skips_tables_without_ids_in_a_shard() -> None:
    tables = Tables(1, 2, 2)
    tables.assign({"t0": ([0], [1]), "t2": ([2, 3], [4, 4, 8, 8]), "t1": ([1], [2, 2])})
    shards = tables.lookup({"t0": [0], "t1": [], "t2": [2]}, {"t0": [], "t1": [1], "t2": [3]})
    assert floats_of(shards) == [1, 4, 4, 2, 2, 8, 8]
    assert splits_of(shards) == [3, 4]
    assert offsets_of(shards) == [0, 1, 1, 3, 3, 5, 7]


@pytest.mark.golden("MultiTypeHashTableTest.test_fused_apply_gradients_missing_tables")
def test_a_fused_update_sums_an_id_of_two_shards_and_leaves_other_tables_alone() -> None:
    tables = Tables(1, 1)
    rates = {"t0": (1.0,)}
    tables.push({"t0": ([5], [1])}, rates)
    tables.push({"t0": ([5], [2])}, rates)
    assert floats_of(tables.lookup({"t0": [5]})) == [-3]
    assert [table.size for table in tables.store.tables()] == [1, 0]


@pytest.mark.golden("MultiTypeHashTableTest.test_lookup_assign_add_reinitialize")
def test_reinitialize_says_which_rows_existed_and_which_table_is_missing() -> None:
    tables = Tables(1, 1)
    tables.assign({"t0": ([1], [1]), "t1": ([2, 3], [2, 3])}, is_added=True)
    assert tables.reinitialize("t1", ids(1, 2, 3)) == [0, 1, 1]
    assert floats_of(tables.lookup({"t1": [1, 2, 3]})) == [0, 0, 0]
    assert tables.reinitialize("missing", ids(1, 2, 3)) == [-1, -1, -1]
    with pytest.raises(UnknownTable, match="missing"):
        tables.lookup({"missing": [1]})


def assign_raw(tables: Tables, keys: I64, values: F32) -> None:
    good = TableValues("t0", ids(1), np.ones((1, 1), np.float32))
    bad = TableValues("t1", keys, values)
    tables.store.assign(EPOCH, Sender("client", 9), [good, bad], is_added=False)


ONE = ([1], [1])
BAD_CALLS = {
    "a NaN gradient": (
        NonFiniteValue,
        "table t1",
        lambda t: t.push({"t0": ONE, "t1": ([2], [np.nan])}),
    ),
    "a NaN rate": (
        NonFiniteValue,
        "rates",
        lambda t: t.push({"t0": ONE, "t1": ([2], [1])}, {"t1": (np.nan,)}),
    ),
    "a rate too many": (
        ShapeMismatch,
        "1 segments",
        lambda t: t.push({"t0": ONE, "t1": ([2], [1])}, {"t1": (1.0, 1.0)}),
    ),
    "an inf value": (
        NonFiniteValue,
        "table t1",
        lambda t: t.assign({"t0": ONE, "t1": ([2], [np.inf])}),
    ),
    "an inf to add": (
        NonFiniteValue,
        "table t1",
        lambda t: t.assign({"t0": ONE, "t1": ([2], [np.inf])}, is_added=True),
    ),
    "a negative time": (
        InvalidRequest,
        "req_time_s -1",
        lambda t: t.assign({"t0": ONE, "t1": ([2], [1])}, -1),
    ),
    "a negative step": (
        InvalidRequest,
        "step -1",
        lambda t: t.push({"t0": ONE, "t1": ([2], [1])}, step=-1),
    ),
    "floats of float64": (
        MalformedArray,
        "float64",
        lambda t: assign_raw(t, ids(2), np.ones((1, 1))),
    ),
    "a row too many": (
        ShapeMismatch,
        r"\(2, 1\)",
        lambda t: assign_raw(t, ids(2), np.ones((2, 1), np.float32)),
    ),
    "every second float": (
        MalformedArray,
        "contiguous",
        lambda t: assign_raw(t, ids(2, 3), np.ones((2, 2), np.float32)[:, ::2]),
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_of_several_tables_changes_no_table(case: str) -> None:
    tables = Tables(1, 1)
    tables.assign({"t0": ([1], [5]), "t1": ([2], [6])}, 100)
    before = tables.whole()
    error, message, call = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        call(tables)
    assert tables.whole() == before
    assert tables.times() == [100, 100]


def test_each_table_gets_its_own_rates_and_every_table_the_time() -> None:
    """Monolith concatenates rates in another order than tables, and drops the time of an assign."""
    tables = Tables(1, 1)
    pair = TableConfig("pair", (Segment(1, Zeros(), Sgd()), Segment(1, Zeros(), Sgd())))
    tables.store.create_tables(EPOCH, [pair])
    tables.dims["pair"] = 2
    both = {"pair": ([1], [1, 1]), "t0": ([2], [1])}
    tables.push(both, {"pair": (1, 2), "t0": (3,)}, req_time_s=70)
    assert floats_of(tables.lookup({"pair": [1], "t0": [2]})) == [-1, -2, -3]
    tables.assign(both, 80)
    assert tables.times() == [80, 80, 0]


def test_a_table_without_ids_in_a_request_keeps_its_time_and_counts_what_the_others_made() -> None:
    tables = Tables(1, 1)
    tables.push({"t0": ([1, 2], [1, 1])}, req_time_s=50)
    tables.push({"t0": ([2], [1])}, req_time_s=50)
    assert [table.stats().created for table in tables.store.tables()] == [2, 0]
    assert tables.times() == [50, 0]


def test_a_table_with_dc_takes_rows_of_twice_its_width_beside_others() -> None:
    tables = Tables(1)
    compensated = TableConfig("dc", (Segment(1, Zeros(), Dc(Sgd(1.0), 0.5)),))
    tables.store.create_tables(EPOCH, [compensated])
    tables.dims["dc"] = 2
    tables.push({"t0": ([1], [2]), "dc": ([2], [3, 0.5])}, {"t0": (1,), "dc": (1,)})
    expected = [-2, -(3 + 0.5 * 9 * (0 - 0.5))]
    np.testing.assert_allclose(floats_of(tables.lookup({"t0": [1], "dc": [2]})), expected)
