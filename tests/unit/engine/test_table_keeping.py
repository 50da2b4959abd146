"""Which rows a table keeps: admission, expiry, retention, budget, dumps while it changes."""

import threading

import numpy as np
import pytest

from megalith.engine.kernels import actions, scan
from megalith.engine.kernels.layout import RECORD, USED
from megalith.engine.table.delta_log import DeltaLog
from megalith.engine.table.embedding_table import EmbeddingTable
from megalith.engine.table.index import IndexMemory
from megalith.engine.table.row_layout import RowLayout
from megalith.engine.table.rows import RowMemory
from megalith.engine.table.writer import EVERYTHING, Writer
from megalith.errors import InvalidSetting
from megalith.kernels.dtypes import F32, I64, Bools
from megalith.schema import (
    Adagrad,
    FixedR8,
    RandomUniform,
    Segment,
    Sgd,
    StochasticRoundingFloat16,
    TableConfig,
    Zeros,
)
from support.delta import take_changes
from support.twins import table as twin

DAY_S = 86400


def make(dim: int = 1, **settings: object) -> EmbeddingTable:
    return EmbeddingTable(TableConfig("t", (Segment(dim, Zeros(), Sgd()),), **settings))  # type: ignore[arg-type]


def ones(keys: I64, dim: int = 1) -> F32:
    return np.ones((keys.size, dim), np.float32)


class EvenOnly:
    """Admits even ids, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], list[int]]] = []

    def admit(self, keys: I64, counts: I64) -> Bools:
        self.asked.append((keys.tolist(), counts.tolist()))
        return np.asarray(keys % 2 == 0)


def filtered() -> tuple[EmbeddingTable, EvenOnly]:
    admission = EvenOnly()
    config = TableConfig("t", (Segment(1, Zeros(), Sgd()),))
    return EmbeddingTable(config, admission=admission), admission


def test_an_id_that_is_not_admitted_reads_zeros_and_its_gradient_is_counted() -> None:
    table, admission = filtered()
    keys = np.array([1, 2, 2, 3], np.int64)
    result = table.apply_gradients(keys, ones(keys), [1])
    assert (result.created, result.barred) == (1, 2)
    np.testing.assert_array_equal(table.lookup(np.arange(4)), [[0], [0], [-2], [0]])
    assert admission.asked == [([1, 2, 2, 3], [1, 1, 1, 1])]
    assert take_changes(table).tolist() == [2]


def test_the_filter_is_asked_for_absent_ids_only_and_with_dedup_once_each() -> None:
    table, admission = filtered()
    two = np.array([2], np.int64)
    table.assign(two, ones(two))
    keys = np.array([2, 4, 4, 5], np.int64)
    table.apply_gradients(keys, ones(keys), [1], dedup=True)
    table.assign_add(two, ones(two))
    assert admission.asked == [([2], [1]), ([4, 5], [2, 1])]


def test_reinitialize_asks_no_filter_and_touches() -> None:
    table, admission = filtered()
    assert table.reinitialize(np.array([7], np.int64)).tolist() == [0]
    assert admission.asked == []
    assert take_changes(table).tolist() == [7]


def test_every_write_touches_and_overflow_is_reported() -> None:
    table = make(touched_capacity=10)
    keys = np.arange(3)
    table.assign(keys, ones(keys))
    assert take_changes(table).tolist() == [0, 1, 2]
    table.assign_add(keys, ones(keys))
    assert take_changes(table).tolist() == [0, 1, 2]
    many = np.arange(12)
    assert table.apply_gradients(many, ones(many)).touched_overflow == 18
    assert table.stats().touched_overflow == 18


def test_random_rows_depend_on_the_id_and_the_seed_alone() -> None:
    def rows(seed: int, order: I64) -> F32:
        config = TableConfig("t", (Segment(8, RandomUniform(), Sgd()),), seed=seed)
        table = EmbeddingTable(config)
        table.apply_gradients(order, np.zeros((order.size, 8), np.float32), [1])
        return table.lookup(np.arange(100))

    forwards, backwards = rows(1, np.arange(100)), rows(1, np.arange(100)[::-1].copy())
    np.testing.assert_array_equal(forwards, backwards)
    assert np.abs(forwards).max() <= 0.05
    assert np.unique(forwards).size > 700
    assert (forwards != rows(2, np.arange(100))).any()


def test_rows_of_expired_ids_are_used_again() -> None:
    table, keys = make(expire_days=1), np.arange(1000)
    table.assign(keys, ones(keys), 10)
    full = table.nbytes
    for generation in range(1, 6):
        now_s = 10 + generation * DAY_S
        table.assign(keys + 1000 * generation, ones(keys), now_s)
        assert table.expire() == 1000
        np.testing.assert_array_equal(table.lookup(keys + 1000 * generation), ones(keys))
        assert table.lookup(keys + 1000 * (generation - 1)).sum() == 0
    assert table.size == 1000
    assert table.nbytes < 2.5 * full
    assert table.stats().expired == 5000


def test_the_retention_floor_drops_the_longest_overdue_rows_first() -> None:
    table, keys = make(expire_days=1, max_expire_share=0.25), np.arange(100)
    for key in keys:
        table.assign(np.array([key]), np.ones((1, 1), np.float32), int(key))
    assert table.expire(10 * DAY_S) == 25
    assert table.contains(keys).tolist() == [False] * 25 + [True] * 75


def test_the_retention_floor_holds_when_all_rows_are_equally_old() -> None:
    table, keys = make(expire_days=1, max_expire_share=0.1), np.arange(1000)
    table.assign(keys, ones(keys), 5)
    assert table.expire(10 * DAY_S) == 100
    assert table.size == 900


def test_a_full_table_refuses_new_ids_trains_the_others_and_stays_within_its_budget() -> None:
    budget = 2_000_000
    table, keys = make(16, memory_budget_bytes=budget), np.arange(100_000)
    result = table.assign(keys, ones(keys, 16))
    assert result.refused > 0
    assert result.created + result.refused == 100_000
    assert budget // 2 < table.nbytes <= budget
    kept = keys[table.contains(keys)]
    result = table.apply_gradients(keys, ones(keys, 16), [1])
    assert result.refused == 100_000 - kept.size
    assert table.lookup(kept).sum() == 0
    assert table.stats().refused == 2 * result.refused


def test_a_full_table_expires_before_it_refuses() -> None:
    table = make(16, memory_budget_bytes=2_000_000, expire_days=1)
    for part in np.split(np.arange(100_000), 100):
        table.assign(part, ones(part, 16), 100)
    room = table.size
    new = np.arange(200_000, 200_000 + room)
    for part in np.array_split(new, 20):
        assert table.assign(part, ones(part, 16), 100 + DAY_S).created == part.size
    assert table.contains(new).all()
    assert table.stats().expired == room
    assert table.nbytes <= 2_000_000


def test_a_full_table_looks_for_expired_rows_once_an_hour_of_data_time() -> None:
    """Each look is a pass over the index: a table that stays full must not make one for every
    push."""
    table = make(16, memory_budget_bytes=2_000_000, expire_days=1, max_expire_share=0.1)
    keys = np.arange(100_000)
    table.assign(keys, ones(keys, 16), 100)
    tenth = table.size // 10
    for generation, (late_s, expired) in enumerate(
        [(0, tenth), (10, tenth), (3599, tenth), (3600, 2 * tenth)], start=1
    ):
        table.assign(keys + 100_000 * generation, ones(keys, 16), 100 + DAY_S + late_s)
        assert table.stats().expired == expired


def test_rows_that_get_room_by_expiry_keep_their_own_times() -> None:
    table = make(16, memory_budget_bytes=2_000_000, expire_days=1)
    old = np.arange(100_000)
    table.assign(old, ones(old, 16), 100)
    held = old[table.contains(old)][
        :100
    ]  # they need no room, so that the others are not the whole batch
    keys, times = np.concatenate([held, np.arange(200_000, 200_500)]), DAY_S + 100 + np.arange(600)
    assert table.load(keys, ones(keys, table.layout.width), times).refused == 0
    np.testing.assert_array_equal(table.lookup_entry(keys).times, times)


def test_a_budget_holds_when_one_batch_is_larger_than_the_table() -> None:
    table = make(16, memory_budget_bytes=2_000_000, expire_days=1)
    for generation in range(4):
        keys = np.arange(100_000) + 100_000 * generation
        table.assign(keys, ones(keys, 16), 100 + DAY_S * generation)
        assert table.nbytes <= 2_000_000


def test_a_budget_below_an_empty_table_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="holds no row"):
        make(memory_budget_bytes=1000)


def test_a_walk_meets_every_row_once_while_the_table_grows_and_shrinks() -> None:
    table = make(expire_days=1)
    old, stable = np.arange(5000), np.arange(10_000, 20_000)
    table.assign(old, ones(old), 0)
    table.assign(stable, ones(stable), DAY_S)
    seen: list[int] = []
    offset, count, round_ = 0, 100, 0
    while count == 100:
        piece = table.dump(limit=100, offset=offset, with_expired=True)
        offset, count = piece.offset, piece.ids.size
        seen += piece.ids.tolist()
        if round_ < 50:
            new = np.arange(30_000 + 1000 * round_, 31_000 + 1000 * round_)
            table.assign(new, ones(new), DAY_S)
        if round_ == 20:
            table.expire()
        round_ += 1
    assert len(set(seen)) == len(seen)
    assert set(stable.tolist()) <= set(seen)


def test_a_walk_goes_on_right_behind_the_row_it_stopped_at() -> None:
    table = EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd()),)), secret=twin.SECRET)
    keys = np.array([twin.id_of((7 << 59) + code) for code in (100, 101, 102)], np.int64)
    table.assign(keys, ones(keys))
    seen, offset = [], 0
    for _ in keys:
        piece = table.dump(limit=1, offset=offset)
        seen, offset = [*seen, *piece.ids.tolist()], piece.offset
    assert seen == keys.tolist()
    assert table.dump(limit=1, offset=offset).ids.size == 0


def test_an_optimizer_of_several_stages_updates_rows() -> None:
    config = TableConfig("t", (Segment(4, Zeros(), StochasticRoundingFloat16(Adagrad())),))
    table, keys = EmbeddingTable(config), np.arange(1000)
    assert table.apply_gradients(keys, ones(keys, 4), [1]).created == 1000
    rows = table.lookup(keys)
    np.testing.assert_allclose(rows, -1 / np.sqrt(1.1), atol=1e-3)
    np.testing.assert_array_equal(rows, rows.astype(np.float16).astype(np.float32))


def test_lookups_show_what_serving_will_store_and_dumps_the_weights_themselves() -> None:
    table, key = (
        EmbeddingTable(TableConfig("t", (Segment(1, Zeros(), Sgd(), FixedR8(1.0)),))),
        np.array([1]),
    )
    table.assign(key, np.array([[0.3]], np.float32))
    np.testing.assert_allclose(table.lookup(key), [[38 / 128]], rtol=1e-6)
    np.testing.assert_allclose(table.dump().rows, [[0.3]], rtol=1e-6)


def test_clear_gives_the_memory_back() -> None:
    table, keys = make(64), np.arange(100_000)
    empty = table.nbytes
    table.assign(keys, ones(keys, 64), 7)
    table.clear()
    assert table.nbytes == empty
    assert table.max_update_s == 7
    table.assign(keys[:10], ones(keys[:10], 64))
    assert table.lookup(keys[:11]).sum() == 640


def test_erasing_drops_the_named_rows_and_finds_all_others() -> None:
    table, rng = make(), np.random.default_rng(4)
    keys = rng.permutation(50_000).astype(np.int64)
    table.assign(keys, keys.astype(np.float32)[:, None])
    gone = rng.choice(keys, 30_000, replace=False)
    assert table.erase(np.concatenate([gone, gone[:100], [-1]])) == gone.size
    np.testing.assert_array_equal(table.contains(keys), ~np.isin(keys, gone))
    left = keys[~np.isin(keys, gone)]
    np.testing.assert_array_equal(table.lookup(left)[:, 0], left)
    assert table.size == left.size == table.dump(limit=60_000).ids.size
    table.assign(gone, gone.astype(np.float32)[:, None])
    np.testing.assert_array_equal(table.lookup(keys)[:, 0], keys)


@pytest.mark.parametrize(
    ("share", "now_overdue", "dropped"),
    [
        pytest.param(0.5, 5_000, 5_000, id="more become overdue than the share allows"),
        pytest.param(0.5, 0, 5_000, id="rows at the limit get equals"),
        pytest.param(0.1, 5_000, 1_000, id="the share was used up before"),
    ],
)
def test_the_retention_floor_holds_however_many_overdue_rows_come_between_looking_and_dropping(
    share: float, now_overdue: int, dropped: int
) -> None:
    """The table has 10,000 rows when an expiry begins.

    50,000 overdue ones are added before it drops the first.
    """
    config = TableConfig("t", (Segment(1, Zeros(), Sgd()),), expire_days=1, max_expire_share=share)
    memory = RowMemory(np.zeros(1, np.float32), 100_000)
    index = IndexMemory(100_000, 1, twin.SECRET)
    log = DeltaLog(index, 100_000)
    writer = Writer(config, RowLayout(config), index, memory, None, log)

    def add(keys: I64, time_s: int) -> None:
        writer.write(actions.Assign(1), keys, ones(keys), np.array([time_s]), EVERYTHING)

    add(np.arange(now_overdue), 1000)
    add(np.arange(now_overdue, 10_000), 10 * DAY_S if now_overdue else 1000)
    quota = writer.expiry.quota(index.arrays, index.used, 10 * DAY_S)
    add(np.arange(100_000, 125_000), 1000)  # as late as the latest, and later
    add(np.arange(200_000, 225_000), 1)
    gone = writer.expiry.drop(index.arrays, memory.arrays, 10 * DAY_S, quota)
    assert np.unique(gone).size == gone.size == dropped
    assert index.used == 60_000 - dropped


def test_expiry_and_writers_at_once_leave_the_counts_exact() -> None:
    table, stop = make(expire_days=1, max_expire_share=0.5), threading.Event()

    def add() -> None:
        first = 0
        while not stop.is_set() and first < 1_000_000:
            table.assign(np.arange(first, first + 2000), np.ones((2000, 1), np.float32), 1)
            first += 2000

    adding = threading.Thread(target=add)
    adding.start()
    try:
        dropped = sum(table.expire(10 * DAY_S) for _ in range(20))
    finally:
        stop.set()
        adding.join()
    stats = table.stats()
    assert (stats.expired, stats.created) == (dropped, dropped + table.size)


WRITES = {
    "assign": lambda table, keys, time_s: table.assign(keys, ones(keys), time_s),
    "assign_add": lambda table, keys, time_s: table.assign_add(keys, ones(keys), time_s),
    "apply_gradients": lambda table, keys, time_s: table.apply_gradients(
        keys, ones(keys), req_time_s=time_s
    ),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_write_without_a_time_keeps_the_time_of_the_rows_it_wrote(kind: str) -> None:
    """One writer gives times, the other none: what either wrote today survives the expiry of
    today."""
    table, write = make(expire_days=30), WRITES[kind]
    today_s = 20_000 * DAY_S
    timed, mixed, untimed, old = (np.arange(1000) + 1000 * i for i in range(4))
    write(table, old, today_s - 30 * DAY_S)
    write(table, timed, today_s)
    write(table, mixed, today_s - DAY_S)
    write(table, mixed, 0)
    write(table, untimed, 0)
    write(table, old[:500], 0)
    assert set(table.lookup_entry(mixed).times.tolist()) == {today_s - DAY_S}
    assert set(table.lookup_entry(untimed).times.tolist()) == {today_s}
    assert table.dump(limit=10_000).ids.size == 3000
    assert table.expire() == 1000
    assert table.contains(np.concatenate([timed, mixed, untimed])).all()
    assert not table.contains(old).any(), "a write without a time says nothing about their age"


@pytest.mark.parametrize("kind", WRITES)
def test_late_data_does_not_make_a_row_older(kind: str) -> None:
    """Updated today, then by data that is 40 days old: at 30 days it stays."""
    table, keys = make(expire_days=30), np.arange(300)
    today_s = 20_000 * DAY_S
    WRITES[kind](table, keys, today_s)
    WRITES[kind](table, keys, today_s - 40 * DAY_S)
    assert set(table.lookup_entry(keys).times.tolist()) == {today_s}
    assert table.expire() == 0
    assert table.dump(limit=1000).ids.size == 300


def test_rows_from_before_the_first_time_get_it_and_are_not_as_old_as_1970() -> None:
    """Rows are assigned before training, without a time; then training gives times."""
    table, keys = make(expire_days=30), np.arange(300_000)
    table.assign(keys, ones(keys))
    assert set(table.lookup_entry(keys).times.tolist()) == {0}
    trained = np.array([1_000_000])
    table.assign(trained, ones(trained), 20_000 * DAY_S)
    assert set(table.lookup_entry(keys).times.tolist()) == {20_000 * DAY_S}
    assert table.expire() == 0
    table.assign(trained, ones(trained), 20_030 * DAY_S)
    assert table.expire() == 300_000


def test_no_row_expires_however_writers_without_a_time_meet_the_first_that_has_one() -> None:
    for turn in range(20):
        table = make(expire_days=30)
        start = threading.Barrier(5)

        def write(
            number: int, table: EmbeddingTable = table, start: threading.Barrier = start
        ) -> None:
            start.wait()
            for part in range(20):
                keys = np.arange(200) + 200 * part + 10_000 * number
                table.assign(keys, ones(keys), 20_000 * DAY_S if number == 0 and part > 5 else 0)
                table.expire()

        threads = [threading.Thread(target=write, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (turn, len(table), table.stats().expired) == (turn, 20_000, 0)


def test_the_first_time_waits_for_a_writer_that_has_not_counted_its_rows_yet() -> None:
    """A writer without a time has put its rows in place and still holds the latch: the table says
    that it is empty."""
    table, keys = make(expire_days=30), np.arange(4000)
    table.assign(keys, ones(keys))
    parts = table._index.arrays.parts
    counted = parts[USED::RECORD].copy()
    scan.enter_all(parts)
    parts[USED::RECORD] = 0
    first = threading.Thread(
        target=table.assign, args=(np.array([10**9]), np.ones((1, 1), np.float32), 20_000 * DAY_S)
    )
    first.start()
    first.join(0.3)
    assert first.is_alive()
    assert table.max_update_s == 0, "no expiry may hear of it yet"
    parts[USED::RECORD] = counted
    scan.leave_all(parts)
    first.join(30)
    assert not first.is_alive()
    assert set(table.lookup_entry(keys).times.tolist()) == {20_000 * DAY_S}
    assert table.expire() == 0


def test_a_load_may_drop_expired_rows_and_counts_every_row() -> None:
    """A walk with the expired rows, loaded without them: each row is loaded or counted as
    expired."""
    table, keys = make(expire_days=1, expire_days_by_slot={1: 5}), np.arange(300_000)
    slot_1 = keys[:1000] + (1 << 48)
    table.assign(keys[:100_000], ones(keys[:100_000]), 10 * DAY_S)
    table.assign(slot_1, ones(slot_1), 10 * DAY_S)
    table.assign(keys[100_000:], ones(keys[100_000:]), 12 * DAY_S)
    everything = table.dump(limit=400_000, with_expired=True)
    assert everything.ids.size == 301_000
    restored = make(expire_days=1, expire_days_by_slot={1: 5})
    loaded = expired = 0
    for part in np.array_split(np.random.default_rng(5).permutation(301_000), 7):
        rows = everything.ids[part], everything.rows[part], everything.times[part]
        result = restored.load(*rows, table.layout.signature, 12 * DAY_S, drop_expired=True)
        loaded += result.created
        expired += result.expired
    assert (loaded, expired) == (201_000, 100_000)
    assert restored.stats().expired == 100_000
    assert len(restored) == 201_000
    assert restored.contains(np.concatenate([keys[100_000:], slot_1])).all()
    assert restored.expire() == 0
    again = restored.load(everything.ids[:10], everything.rows[:10], everything.times[:10])
    assert (again.created + again.replaced, again.expired) == (10, 0), "only if it is told to"


def test_a_load_leaves_expired_rows_to_an_expiry_that_may_drop_a_share_only() -> None:
    table, keys = make(expire_days=1, max_expire_share=0.25), np.arange(1000)
    rows, times = np.ones((1000, table.layout.width), np.float32), np.full(1000, DAY_S)
    result = table.load(keys, rows, times, None, 10 * DAY_S, drop_expired=True)
    assert (result.created, result.expired) == (1000, 0)
    assert table.expire() == 250
