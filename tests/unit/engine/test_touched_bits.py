"""The touched bit of a row stands for its id being in the set of touched keys, whatever happens to
either."""

import threading

import numpy as np

from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.schema import Segment, Sgd, TableConfig, Zeros


def table_of(capacity: int = 100_000) -> EmbeddingTable:
    return EmbeddingTable(
        TableConfig("t", (Segment(1, Zeros(), Sgd(1.0)),), touched_capacity=capacity)
    )


def push(table: EmbeddingTable, keys) -> None:
    keys = np.asarray(keys, np.int64)
    table.apply_gradients(keys, np.ones((keys.size, 1), np.float32), req_time_s=1000)


def test_an_id_is_told_once_for_each_steal() -> None:
    table = table_of()
    for _ in range(2):
        push(table, [1, 2])
        push(table, [2, 3])
        assert sorted(table.steal_touched().tolist()) == [1, 2, 3]
        assert table.steal_touched().size == 0


def test_an_untracked_write_neither_tells_nor_forgets() -> None:
    table = table_of()
    push(table, [1])
    table.assign(np.array([1, 2]), np.zeros((2, 1), np.float32), 2000)
    assert table.steal_touched().tolist() == [1]
    assert table.lookup_entry(np.array([1, 2])).times.tolist() == [2000, 2000]


def test_an_id_dropped_and_made_again_is_told_once() -> None:
    table = table_of()
    push(table, [1])
    table.clear()
    push(table, [1])
    assert table.steal_touched().tolist() == [1]


def test_bits_survive_growth() -> None:
    table, keys = table_of(), np.arange(50_000)
    push(table, keys[:100])
    push(table, keys)
    assert sorted(table.steal_touched().tolist()) == keys.tolist()


def test_after_an_overflow_every_id_is_noted_again() -> None:
    table = table_of(10)
    push(table, np.arange(11))
    push(table, [11])  # drops the eleven
    push(table, [0, 11])
    assert sorted(table.steal_touched().tolist()) == [0, 11]


def test_ids_touched_while_nobody_tracked_are_noted_later() -> None:
    table = table_of()
    push(table, [1])
    table.reconfigure(TableConfig("t", table.config.segments))
    assert table.steal_touched().size == 0
    table.reconfigure(TableConfig("t", table.config.segments, touched_capacity=10))
    push(table, [1])
    assert table.steal_touched().tolist() == [1]


def test_no_change_is_lost_between_writers_and_a_thief() -> None:
    """A copy that reads the stolen ids ends up equal to the table."""
    table, keys, copy, stop = (
        table_of(),
        np.arange(5000),
        np.zeros(5000, np.float32),
        threading.Event(),
    )

    def write(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            push(table, rng.choice(keys, 700, replace=False))

    def follow() -> None:
        while not stop.is_set():
            stolen = table.steal_touched()
            copy[stolen] = table.lookup(stolen)[:, 0]

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    thief = threading.Thread(target=follow)
    for thread in [*writers, thief]:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    thief.join()
    stolen = table.steal_touched()
    copy[stolen] = table.lookup(stolen)[:, 0]
    np.testing.assert_array_equal(copy, table.lookup(keys)[:, 0])
    assert copy.sum() == -3 * 150 * 700
