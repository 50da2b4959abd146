"""Four threads at once on one table: nothing is lost, nothing is counted twice, no row is seen
half-written."""

import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.kernels.dtypes import I64
from megalith.schema import AdmissionConfig, Segment, Sgd, TableConfig, Zeros
from support.delta import take_changes

DURATION_S = float(os.environ.get("MEGALITH_STRESS_S", "2"))
DAY_S = 86400
DIM = 24
NOW_S = 100 * DAY_S
STABLE = np.arange(20_000, dtype=np.int64) * 31
SHORT_LIVED_SLOT, FILTERED_SLOT = 5, 6


class Stress:
    """Threads that repeat a step until the time is up; an exception in one stops and fails all."""

    def __init__(self, duration_s: float) -> None:
        self._until = time.monotonic() + duration_s
        self._errors: list[BaseException] = []

    def run(self, *steps: Callable[[np.random.Generator], None]) -> None:
        threads = [
            threading.Thread(target=self._repeat, args=(step, i)) for i, step in enumerate(steps)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _repeat(self, step: Callable[[np.random.Generator], None], seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while time.monotonic() < self._until and not self._errors:
                step(rng)
        except BaseException as error:
            self._errors.append(error)


@pytest.mark.timeout(120 + 2 * DURATION_S)
def test_mixed_calls_from_four_threads_keep_sums_exact_and_rows_whole() -> None:
    config = TableConfig(
        "t",
        (Segment(DIM, Zeros(), Sgd()),),
        expire_days_by_slot={SHORT_LIVED_SLOT: 1, FILTERED_SLOT: 1},
        admission=AdmissionConfig(threshold_by_slot={FILTERED_SLOT: 1}, capacity=100_000),
    )
    table = EmbeddingTable(config)
    assert isinstance(table.admission, CountingFilter)
    admission = table.admission
    is_stolen, fresh = np.zeros(STABLE.size, np.bool_), [1 << 30, 0]
    table.assign(STABLE, np.zeros((STABLE.size, DIM), np.float32), NOW_S)
    updates, additions, visits = (
        np.zeros(STABLE.size, np.int64),
        np.zeros(STABLE.size, np.int64),
        [0, 0, 0],
    )

    def check_whole(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        assert (rows == rows[:, :1]).all(), "a row was seen half-written"

    def pick(rng: np.random.Generator) -> I64:
        return rng.integers(0, STABLE.size, 3000)

    def apply_gradients(rng: np.random.Generator) -> None:
        positions = pick(rng)
        table.apply_gradients(
            STABLE[positions], np.full((3000, DIM), -1, np.float32), [1], req_time_s=NOW_S
        )
        np.add.at(updates, positions, 1)

    def assign_add(rng: np.random.Generator) -> None:
        positions = pick(rng)
        table.assign_add(STABLE[positions], np.full((3000, DIM), 2, np.float32), NOW_S)
        np.add.at(additions, positions, 2)

    def come_and_go(rng: np.random.Generator) -> None:
        short_lived = rng.integers(0, 1 << 47, 2000) | SHORT_LIVED_SLOT << 48
        table.assign(short_lived, np.full((2000, DIM), 7, np.float32), NOW_S - DAY_S)
        # New ids of a slot that is filtered: the first push counts them, the second gives rows to
        # just those.
        keys = (np.arange(fresh[0], fresh[0] + 200) * 7919) | FILTERED_SLOT << 48
        fresh[0] += 200
        first, second = (
            table.apply_gradients(
                keys, np.full((200, DIM), -1, np.float32), [1], req_time_s=NOW_S - DAY_S
            )
            for _ in range(2)
        )
        assert first.barred + first.created == 200
        assert (second.created, second.barred) == (first.barred, 0)
        fresh[1] += first.barred
        visits[0] += table.expire()

    def read(rng: np.random.Generator) -> None:
        rows = table.lookup(STABLE[pick(rng)])
        check_whole(rows)
        visits[1] += len(rows)
        seen = 0
        offset, count = 0, 4096
        while count == 4096:
            piece = table.dump(limit=4096, offset=offset)
            offset, count = piece.offset, piece.ids.size
            check_whole(piece.rows)
            seen += np.count_nonzero(piece.ids >> 48 == 0)
        assert seen == STABLE.size, "a save misses no row that is there all the time"
        visits[2] += seen
        assert admission.state()["counters"][0] >= 0
        note(take_changes(table))
        table.changes.acknowledge("stress", table.changes.newest)

    def note(keys: I64) -> None:
        stable = keys[keys >> 48 == 0]
        is_stolen[stable // 31] = True

    Stress(DURATION_S).run(apply_gradients, assign_add, come_and_go, read)
    table.expire()
    note(take_changes(table))
    assert is_stolen.all(), "all of them were assigned at first"
    stats = table.stats()
    assert (stats.touched_overflow, stats.barred, stats.refused) == (0, fresh[1], 0)
    assert stats.created - stats.expired == table.size == STABLE.size
    np.testing.assert_array_equal(
        table.lookup(STABLE), np.repeat((updates + additions)[:, None], DIM, axis=1)
    )
    assert min(visits) > 0
    assert updates.sum() > 0
    assert additions.sum() > 0


def test_two_threads_creating_the_same_ids_make_each_row_once() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd()),)))
    keys = np.arange(200_000, dtype=np.int64)

    def add(order: I64) -> None:
        for part in np.array_split(order, 50):
            table.assign_add(part, np.ones((part.size, 1), np.float32))

    threads = [
        threading.Thread(target=add, args=(order,))
        for order in (keys, keys[::-1].copy(), keys, keys)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.size == keys.size
    assert table.stats().created == keys.size
    np.testing.assert_array_equal(table.lookup(keys), np.full((keys.size, 1), 4))
