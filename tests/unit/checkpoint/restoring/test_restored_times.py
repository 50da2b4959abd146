"""Rows that are old or have no time, when a checkpoint is restored or served."""

import numpy as np
import pytest

from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.restoring.serving import load_for_serving
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.ps.store.store import Store
from megalith.schema import Ones, Segment, Sgd, TableConfig
from megalith.wire import routing
from support import at_size
from support.saved_stores import restore, save

IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 5_000)


def test_a_checkpoint_holds_expired_rows_and_a_restore_drops_and_counts_them(tmp_path):
    """Data time is that of all servers: what is old beside another server's rows is dropped too."""
    stores, day_s = [Store(0), Store(1)], 86400
    for store, keys, times in zip(
        stores, ([1, 2], [3, 4]), ((1000, 1100), (1000, 1000 + day_s)), strict=True
    ):
        table = EmbeddingTable(TableConfig("t", (Segment(1),), expire_days=1))
        for key, req_time_s in zip(keys, times, strict=True):
            table.assign(np.array([key]), np.ones((1, 1), np.float32), req_time_s=req_time_s)
        store.adopt(table=table)
    files = save(stores, tmp_path / "c")
    assert [file.rows for file in files if file.kind == "table"] == [2, 2]
    store = Store(0)
    restored = restore_shard(store, tmp_path / "c", routing.even_owners(1), 0)
    assert (restored.rows, restored.expired) == (2, 2)
    assert sorted(store.tables()[0].dump().ids.tolist()) == [2, 4]
    assert sorted(
        load_for_serving(tmp_path / "c").tables["t"].contains(np.arange(1, 5)).tolist()
    ) == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("order", ["random", "sorted", "clustered"])
def test_rows_without_a_time_are_restored_and_served_though_another_server_has_seen_one(
    tmp_path, order
):
    """300,000 rows written without a time on two servers, then one timed write, to a row of the
    first."""
    ids = at_size.ids_in(order, 300_000)
    today_s = 1_790_000_000
    config = TableConfig("t", (Segment(2, Ones(), Sgd(1.0)),), expire_days=30)
    owner = routing.Routing(1, ("a", "b"), routing.even_owners(2)).owner_of(ids)
    stores = [Store(0), Store(1)]
    for index, store in enumerate(stores):
        table = EmbeddingTable(config)
        mine = ids[owner == index]
        table.assign(mine, np.stack([mine % 1000, mine % 7], axis=1).astype(np.float32))
        store.adopt(table=table)
    timed = ids[owner == 0][:1]
    stores[0].tables()[0].assign(timed, np.ones((1, 2), np.float32), today_s)
    assert [store.tables()[0].expire() for store in stores] == [0, 0]
    save(stores, tmp_path / "c")
    expected = np.stack([ids % 1000, ids % 7], axis=1).astype(np.float32)
    expected[ids == timed] = 1
    for num_ps in (1, 2, 3):
        rows = 0
        for index in range(num_ps):
            store = Store(index)
            owners = routing.even_owners(num_ps)
            restored = restore_shard(store, tmp_path / "c", owners, index)
            table = store.tables()[0]
            assert (restored.expired, table.expire(), table.max_update_s) == (0, 0, today_s)
            mine = owners[routing.buckets_of(ids)] == index
            entries = table.lookup_entry(ids[mine])
            np.testing.assert_array_equal(entries.values, expected[mine])
            assert set(entries.times.tolist()) == {today_s}
            rows += restored.rows
        assert rows == ids.size
    served = load_for_serving(tmp_path / "c").tables["t"]
    assert len(served) == ids.size
    assert served.expire() == 0
    np.testing.assert_array_equal(served.lookup(ids), expected)


def test_rows_without_a_time_are_served_as_of_the_newest_time_and_not_of_the_first_file(tmp_path):
    """Three servers: one has seen no time, one an older time than the third."""
    today_s = 1_790_000_000
    config = TableConfig("t", (Segment(1, Ones(), Sgd(1.0)),), expire_days=30)
    owner = routing.Routing(1, ("a", "b", "c"), routing.even_owners(3)).owner_of(IDS)
    stores = [Store(0), Store(1), Store(2)]
    for index, store in enumerate(stores):
        table = EmbeddingTable(config)
        mine = IDS[owner == index]
        time_s = (0, today_s - 20 * 86400, today_s)[index]
        table.assign(mine, np.ones((mine.size, 1), np.float32), time_s)
        store.adopt(table=table)
    save(stores, tmp_path / "c")
    served = load_for_serving(tmp_path / "c").tables["t"]
    assert len(served) == IDS.size
    assert served.expire(today_s + 15 * 86400) == np.count_nonzero(owner == 1)
    assert served.contains(IDS[owner == 0]).all()


def test_rows_expired_at_data_time_are_left_out(tmp_path):
    table = EmbeddingTable(TableConfig("t", (Segment(1),), expire_days=1))
    table.assign(np.array([1, 2]), np.ones((2, 1), np.float32), req_time_s=1000)
    table.assign(np.array([3]), np.ones((1, 1), np.float32), req_time_s=1000 + 86400)
    store = Store(0)
    store.adopt(table=table)
    save([store], tmp_path / "c")
    assert restore(tmp_path / "c", 1)[0].tables()[0].dump().ids.tolist() == [3]


def test_data_time_is_restored_and_not_taken_for_the_wall_clock_of_reinitialized_rows(tmp_path):
    """Data of 1970 with one row reinitialized today: none of the others is overdue after a
    restart."""
    table = EmbeddingTable(
        TableConfig("t", (Segment(1),), expire_days=1), clock=lambda: 1_700_000_000
    )
    table.assign(np.arange(10), np.ones((10, 1), np.float32), req_time_s=1000)
    table.reinitialize(np.array([3]))
    store = Store(0)
    store.adopt(table=table)
    save([store], tmp_path / "c")
    restored = restore(tmp_path / "c", 1)[0].tables()[0]
    assert restored.max_update_s == 1000
    assert restored.expire() == 0
    assert restored.dump().ids.size == 10
