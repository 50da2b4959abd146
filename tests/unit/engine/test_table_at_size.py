"""Tables of 300,000 rows, where each partition has grown many times: whatever the ids and their
order."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from megalith.engine.kernels.layout import (
    CAPACITY,
    FAR_AWAY,
    LAST,
    LEAST_SPILL,
    LINE,
    PARTITIONS,
    RECORD,
    SPILL,
    U64,
    Secret,
)
from megalith.engine.table.embedding_table import EmbeddingTable, RowEntries
from megalith.engine.table.index import MOST_BYTES_PER_ENTRY
from megalith.engine.table.touched import TouchedIdSet
from megalith.kernels import distinct
from megalith.kernels.dtypes import F32, I64
from megalith.schema import Adagrad, Segment, TableConfig, Zeros
from support.twins import table as twin

ROWS, DIM, AT_ONCE = 300_000, 2, 65_536
# The multipliers that the hash of ids had before it got a secret: what someone would guess who has
# none.
PUBLISHED = (1, 0x3C79AC492BA7B653, 0x1C69B3F74AC4AE35)


def keys_of(codes: U64, multipliers: tuple[int, int, int]) -> I64:
    """The keys that have these codes with these multipliers, by numpy."""
    inverse_0, inverse_1, inverse_2 = (
        np.uint64(pow(number, -1, 1 << 64)) for number in multipliers
    )
    with np.errstate(over="ignore"):
        x = codes * inverse_2
        x ^= (x >> np.uint64(27)) ^ (x >> np.uint64(54))
        x *= inverse_1
        x ^= x >> np.uint64(32)
        return (x * inverse_0).view(np.int64)


def colliding(multipliers: tuple[int, int, int], top: int, count: int) -> I64:
    """Keys whose codes share their top 40 bits."""
    low = np.random.default_rng(top).permutation(1 << 24)[:count].astype(np.uint64)
    return keys_of((np.uint64(top) << np.uint64(24)) + low, multipliers)


def random_ids() -> I64:
    return np.random.default_rng(1).integers(-(2**63), 2**63 - 1, ROWS)


def clustered_ids() -> I64:
    """Runs of 1,000 in no order."""
    starts = np.random.default_rng(2).integers(0, 2**40, ROWS // 1000) * 1000
    return (starts[:, None] + np.arange(1000)).reshape(-1)


IDS: dict[str, Callable[[], I64]] = {
    "random": random_ids,
    "sorted": lambda: np.arange(ROWS),
    "clustered": clustered_ids,
    "adversarial": lambda: colliding(PUBLISHED, 0x123456789A, ROWS),
}


def make(secret: Secret | None = None) -> EmbeddingTable:
    return EmbeddingTable(TableConfig("t", (Segment(DIM, Zeros(), Adagrad()),)), secret=secret)


def contents(keys: I64) -> tuple[F32, I64]:
    """Rows and times, all different."""
    rows = np.random.default_rng(3).random((keys.size, 2 * DIM), np.float32)
    return rows, np.arange(1, keys.size + 1)


def load(table: EmbeddingTable, keys: I64, rows: F32, times: I64) -> None:
    """As a restore does: in slices, of which none is refused anything."""
    for begin in range(0, keys.size, AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        result = table.load(keys[part], rows[part], times[part])
        assert (result.created, result.refused) == (keys[part].size, 0)


def check_entries(table: EmbeddingTable, keys: I64, rows: F32, times: I64) -> None:
    assert len(table) == keys.size
    found: RowEntries = table.lookup_entry(keys)
    np.testing.assert_array_equal(found.values, rows[:, :DIM])
    np.testing.assert_array_equal(found.state, rows[:, DIM:])
    np.testing.assert_array_equal(found.times, times)
    np.testing.assert_array_equal(table.lookup(keys), rows[:, :DIM])
    assert table.stats().refused == 0


def searches(table: EmbeddingTable) -> I64:
    """How many slots each entry is behind its home."""
    slots, parts, _ = table._index.arrays
    lengths = []
    for partition in range(PARTITIONS):
        record = parts[partition * RECORD : (partition + 1) * RECORD]
        begin, end = record[LAST] + LINE - record[CAPACITY], record[LAST] + LINE + record[SPILL]
        words = slots[2 * begin : 2 * end].reshape(-1, 2)
        used = np.flatnonzero(words[:, 1])
        share = (words[used, 0] << np.uint64(5)) >> np.uint64(32)
        home = (share * np.uint64(record[CAPACITY] // LINE)) >> np.uint64(32)
        lengths.append(begin + used - (record[LAST] - LINE * home.astype(np.int64)))
    return np.concatenate(lengths)


def check_searches_are_short(table: EmbeddingTable) -> None:
    """The index is as large as for random ids, and a search as short."""
    lengths = searches(table)
    assert lengths.max() < FAR_AWAY
    assert lengths.mean() < 4 * LINE
    index_bytes = table._index.nbytes - PARTITIONS * LEAST_SPILL * 16
    assert index_bytes < 1.1 * len(table) * MOST_BYTES_PER_ENTRY


@pytest.mark.parametrize("ids", IDS)
def test_a_table_goes_into_another_whole_whatever_its_ids(ids: str) -> None:
    keys = IDS[ids]()
    rows, times = contents(keys)
    source, target = make(), make()
    load(source, keys, rows, times)
    check_entries(source, keys, rows, times)
    check_searches_are_short(source)
    offset = 0
    while (part := source.dump(limit=AT_ONCE, offset=offset)).ids.size:
        load(target, part.ids, part.rows, part.times)
        offset = part.offset
    check_entries(target, keys, rows, times)
    check_searches_are_short(target)


ORDERS: dict[str, Callable[[int], I64]] = {
    "of the dump": lambda size: np.arange(size),
    "of the dump, backwards": lambda size: np.arange(size)[::-1],
    "of the dump, from its middle on": lambda size: np.roll(np.arange(size), size // 2),
    "of four shards in turn": lambda size: np.arange(size).reshape(4, -1).T.reshape(-1),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_table_takes_its_own_rows_back_in_any_order_of_their_codes(order: str) -> None:
    keys = random_ids()
    rows, times = contents(keys)
    table = make()
    load(table, keys, rows, times)
    dumped = table.dump(limit=ROWS)
    assert dumped.ids.size == ROWS
    table.clear()
    again = ORDERS[order](ROWS)
    load(table, dumped.ids[again], dumped.rows[again], dumped.times[again])
    check_entries(table, keys, rows, times)
    check_searches_are_short(table)


def test_two_tables_keep_the_same_ids_in_orders_of_their_own() -> None:
    keys, first, second = np.arange(1000), make(), make()
    for table in (first, second):
        load(table, keys, *contents(keys))
    assert first.dump().ids.tolist() != second.dump().ids.tolist()
    assert sorted(first.dump().ids.tolist()) == keys.tolist()


@pytest.mark.parametrize("top", [0, 0x0000100000, 0x123456789A, (1 << 40) - 1], ids=hex)
def test_ids_that_collide_under_the_tables_own_secret_are_kept_and_take_no_more_memory(
    top: int,
) -> None:
    """Nobody can choose them without the secret; their searches are long, but none is lost."""
    keys = colliding((twin.MULTIPLY_0, twin.MULTIPLY_1, twin.MULTIPLY_2), top, 5000)
    rows, times = contents(keys)
    table = make(twin.SECRET)
    load(table, keys, rows, times)
    check_entries(table, keys, rows, times)
    assert searches(table).max() >= 5000 - 2 * LINE, "or they did not collide"
    assert table._index.nbytes < 5000 * 2 * MOST_BYTES_PER_ENTRY + PARTITIONS * 1000 * 16
    assert sorted(table.dump().ids.tolist()) == sorted(keys.tolist())
    assert table.erase(keys[::2].copy()) == 2500
    kept = np.arange(1, 5000, 2)
    check_entries(table, keys[kept], rows[kept], times[kept])
    others = random_ids()[:50_000]
    load(table, others, *contents(others))
    assert table.contains(np.concatenate([keys[kept], others])).all()


def seconds_of(call: Callable[[], object]) -> float:
    """The best of three."""
    best = np.inf
    for _ in range(3):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return float(best)


def test_distinct_ids_are_counted_as_fast_in_the_order_of_their_codes_as_in_none() -> None:
    """A search that runs through all keys before it takes a thousand times as long."""
    shuffled = random_ids()
    ordered = keys_of(
        np.arange(ROWS, dtype=np.uint64) << np.uint64(24), (twin.MULTIPLY_0, *PUBLISHED[1:])
    )
    found, numbers = np.empty(ROWS, np.int64), np.empty(ROWS, np.int32)

    def count(ids: I64) -> int:
        return distinct.distinct(distinct.SECRET, ids, found, numbers)

    assert count(shuffled) == count(ordered) == ROWS
    assert seconds_of(lambda: count(ordered)) < 20 * seconds_of(lambda: count(shuffled))

    collided = routing_collisions()
    assert count(collided) == collided.size
    assert seconds_of(lambda: count(collided)) < 20 * seconds_of(
        lambda: count(shuffled[: collided.size])
    )


def test_touched_ids_that_collide_in_the_routing_hash_are_noted_as_fast_as_others() -> None:
    keys, random = routing_collisions(), random_ids()[:100_000]
    collided, spread = TouchedIdSet(200_000), TouchedIdSet(200_000)
    assert collided.add(keys) == spread.add(random) == 0
    assert collided.size == keys.size
    assert seconds_of(lambda: collided.add(keys)) < 20 * seconds_of(lambda: spread.add(random))


def routing_collisions() -> I64:
    """Keys whose routing hash, which is fixed, ends in 40 zeros: splitmix64's finalizer
    backwards."""
    with np.errstate(over="ignore"):
        x = np.arange(100_000, dtype=np.uint64) << np.uint64(40)
        x ^= (x >> np.uint64(31)) ^ (x >> np.uint64(62))
        x *= np.uint64(pow(0x94D049BB133111EB, -1, 1 << 64))
        x ^= (x >> np.uint64(27)) ^ (x >> np.uint64(54))
        x *= np.uint64(pow(0xBF58476D1CE4E5B9, -1, 1 << 64))
        x ^= (x >> np.uint64(30)) ^ (x >> np.uint64(60))
        return x.view(np.int64)
