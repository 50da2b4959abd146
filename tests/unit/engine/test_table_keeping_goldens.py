"""Golden numbers of Monolith's tables: expiry, saves and walks.

Each test is named after its case.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from megalith.checkpoint.layout import manifest
from megalith.checkpoint.layout.manifest import Manifest
from megalith.checkpoint.restoring.restore import restore_shard
from megalith.checkpoint.saving.save import save_shard
from megalith.engine.table.embedding_table import Chunk, EmbeddingTable
from megalith.local.model import LocalModel
from megalith.wire import routing
from support.golden_tables import column, ids, sgd_table

DAY_S = 86400


def fid(slot: int, signature: int) -> int:
    return slot << 48 | signature


def saved_and_restored(table: EmbeddingTable, folder: Path) -> EmbeddingTable:
    """The table as a checkpoint gives it back."""
    folder.mkdir()
    model = LocalModel()
    model.adopt(table=table)
    files = tuple(save_shard(model, folder, "00", 0, 1).files)
    manifest.write(folder, Manifest(1, 1, 1.0, files, save_id="00"))
    restored = LocalModel()
    restore_shard(restored, folder, routing.even_owners(1), 0)
    (found,) = restored.tables()
    return found


@pytest.mark.golden("EmbeddingHashTableEvictTest.OneTimeEvict")
def test_rows_expire_after_the_days_of_their_slot() -> None:
    table = sgd_table(expire_days=14, expire_days_by_slot={0: 0, 1: 5, 2: 6})
    keys = ids(fid(1, 7), fid(2, 7), fid(3, 7))
    table.assign(keys, column(1, 2, 3), 1234)
    assert table.expire(1234 + 5 * DAY_S + 60) == 1
    np.testing.assert_array_equal(table.lookup(keys), column(0, 2, 3))


@pytest.mark.golden("EmbeddingHashTableEvictTest.EvictWhileRehash")
def test_rows_expire_while_a_writer_makes_the_table_grow() -> None:
    table = sgd_table(expire_days_by_slot={slot: slot for slot in range(20)})
    keys = [np.array([fid(slot, i) for i in range(2000)], np.int64) for slot in range(20)]
    now_s = 1234 + int(5.5 * DAY_S)

    def insert() -> None:
        for part in range(0, 2000, 50):
            for slot in range(20):
                some = keys[slot][part : part + 50]
                table.assign(some, np.full((50, 1), slot + 1, np.float32), 1234 + part // 50)

    writer = threading.Thread(target=insert)
    writer.start()
    while writer.is_alive():
        table.expire(now_s)
    table.expire(now_s)
    for slot in range(20):
        np.testing.assert_array_equal(
            table.lookup(keys[slot]), np.full((2000, 1), slot + 1 if slot > 5 else 0)
        )
    assert table.size == 14 * 2000


@pytest.mark.golden(
    "HashTableOpsTest.test_save_restore_with_feature_eviction_assign_add",
    "HashTableOpsTest.test_save_restore_with_feature_eviction_apply_gradients",
)
@pytest.mark.parametrize("kind", ["assign_add", "apply_gradients"])
def test_a_save_leaves_out_rows_older_than_the_newest_by_their_days(
    kind: str, tmp_path: Path
) -> None:
    table, newest = sgd_table(expire_days=1), 10**7
    for key, time_s in enumerate((newest - DAY_S - 1, newest - DAY_S + 1, newest), start=1):
        if kind == "assign_add":
            table.assign_add(ids(key), column(-key), time_s)
        else:
            table.apply_gradients(ids(key), column(key), [1], req_time_s=time_s)
    restored = saved_and_restored(table, tmp_path / "saved")
    np.testing.assert_array_equal(restored.lookup(ids(1, 2, 3)), column(0, -2, -3))


@pytest.mark.golden("HashTableOpsTest.test_save_restore_with_feature_eviction_same_req_time")
@pytest.mark.parametrize("time_s", [0, 10**7])
def test_a_save_of_rows_that_are_all_of_one_time_leaves_out_none(
    time_s: int, tmp_path: Path
) -> None:
    table = sgd_table(expire_days=1)
    table.assign_add(ids(1, 2, 3), column(1, 2, 3), time_s)
    restored = saved_and_restored(table, tmp_path / "saved")
    np.testing.assert_array_equal(restored.lookup(ids(1, 2, 3)), column(1, 2, 3))


@pytest.mark.golden("HashTableOpsTest.test_entry_ttl_zero")
def test_with_zero_days_a_save_leaves_out_every_row(tmp_path: Path) -> None:
    table = sgd_table(expire_days=0)
    table.assign_add(ids(1, 2), column(1, 2))
    assert saved_and_restored(table, tmp_path / "saved").size == 0


@pytest.mark.golden("HashTableOpsTest.test_entry_ttl_by_slots")
def test_saves_leave_out_rows_by_the_days_of_their_slot_time_after_time(tmp_path: Path) -> None:
    table = sgd_table(expire_days_by_slot={1: 0, 2: 1})
    keys = ids(fid(1, 1), fid(2, 1))
    table.assign_add(keys, column(1, 2), 100)
    for name in ("first", "second"):
        table = saved_and_restored(table, tmp_path / name)
        np.testing.assert_array_equal(table.lookup(keys), column(0, 2))


def test_eviction_boundary_is_inclusive() -> None:
    table = sgd_table(expire_days=1)
    table.assign(ids(1, 2), column(1, 1), 1000)
    assert table.expire(1000 + DAY_S - 1) == 0
    assert table.expire(1000 + DAY_S) == 2


@pytest.mark.golden("ReaderUtilTest.GetSlotID")
def test_rows_of_the_highest_slot_expire_with_it_and_no_others() -> None:
    table = sgd_table(expire_days_by_slot={123: 0, 32767: 0})
    keys = ids(123 << 48, ((1 << 15) - 1) << 48, 122 << 48)
    table.assign(keys, column(1, 1, 1))
    assert table.expire() == 2
    assert table.contains(keys).tolist() == [False, False, True]


@pytest.mark.golden("HashTableUtilsTest.test_iterate_table_and_apply")
def test_dumps_of_two_rows_a_time_over_ten_shards_meet_every_row_once() -> None:
    table = sgd_table()
    table.assign(np.arange(100), np.ones((100, 1), np.float32))
    seen: list[int] = []
    for share in range(10):
        offset, count = 0, 2
        while count == 2:
            piece = table.dump(share, 10, limit=2, offset=offset)
            offset, count = piece.offset, piece.ids.size
            seen += piece.ids.tolist()
    assert sorted(seen) == list(range(100))


@pytest.mark.golden("SaveRestoreEmbeddingHashTestTest.SaveRestoreMultithreaded")
def test_ten_threads_restore_26000_rows_that_ten_dumps_by_threads_hold_once_each() -> None:
    table, keys = sgd_table(), np.arange(26000, dtype=np.int64)
    table.assign(keys, keys.astype(np.float32).reshape(-1, 1), 5)
    begin = threading.Barrier(10)

    def dump(share: int) -> Chunk:
        begin.wait(60)
        return table.dump(share, 10, limit=100_000)

    with ThreadPoolExecutor(10) as pool:
        pieces = list(pool.map(dump, range(10)))

    assert sorted(np.concatenate([piece.ids for piece in pieces]).tolist()) == keys.tolist()
    restored = sgd_table()
    threads = [
        threading.Thread(target=restored.load, args=(piece.ids, piece.rows, piece.times))
        for piece in pieces
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(restored.lookup(keys), keys.reshape(-1, 1))
    assert restored.max_update_s == 5


@pytest.mark.golden("HashTableOpsTest.test_save_restore_with_hash_table_clear_logic")
def test_a_restore_into_a_cleared_table_undoes_what_came_after_the_save() -> None:
    table = sgd_table()
    table.assign(ids(1), column(1))
    piece = table.dump()
    table.assign(ids(1, 2), column(5, 5))
    table.clear()
    table.load(piece.ids, piece.rows, piece.times)
    np.testing.assert_array_equal(table.lookup(ids(1, 2)), column(1, 0))


@pytest.mark.golden("HashTableOpsTest.test_save_restore_with_hash_table_clear_logic")
def test_a_checkpoint_restored_into_a_model_undoes_what_came_after_the_save(tmp_path: Path) -> None:
    """Also in a model that has the table already, with rows that the checkpoint has not."""
    table = sgd_table()
    table.assign(ids(1), column(1))
    saved = saved_and_restored(table, tmp_path / "saved")
    np.testing.assert_array_equal(saved.lookup(ids(1, 2)), column(1, 0))

    table.assign(ids(1, 2), column(5, 5))
    model = LocalModel()
    model.adopt(table=table)
    restore_shard(model, tmp_path / "saved", routing.even_owners(1), 0)
    (restored,) = model.tables()
    np.testing.assert_array_equal(restored.lookup(ids(1, 2)), column(1, 0))
    assert restored.size == 1


@pytest.mark.golden(
    "SaveRestoreEmbeddingHashTestTest.SaveWithStopEarly",
    "SaveRestoreEmbeddingHashTestTest.SaveWithOffset",
)
def test_a_dump_that_stopped_early_goes_on_at_its_offset() -> None:
    """A walk may end after any slice, and one that goes on at its offset meets the rest."""
    table, keys = sgd_table(), np.arange(100)
    table.assign(keys, np.ones((100, 1), np.float32))
    early = table.dump(limit=30)
    assert early.ids.size == 30
    rest = table.dump(limit=100, offset=early.offset)
    assert sorted([*early.ids.tolist(), *rest.ids.tolist()]) == keys.tolist()
