"""The kernels of index, pool, batches and walks, each against a naive twin."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from megalith.engine.kernels import batches, codes, grouping, index, latch, pool, scan
from megalith.engine.kernels.atomics import compare_exchange, load_acquire, store_release
from megalith.engine.kernels.copying import copy_floats
from megalith.engine.kernels.layout import (
    CAPACITY,
    FAR,
    LAST,
    LEAST_SPILL,
    LINE,
    MOST_SPILL,
    PAGE,
    PARTITIONS,
    POOL,
    POOL_LIMIT,
    POOL_SLOTS,
    RECORD,
    SPILL,
    U64,
    USED,
    Index,
    Secret,
)
from megalith.engine.kernels.matching import matches
from megalith.engine.table.index import IndexMemory
from megalith.engine.table.rows import RowMemory
from megalith.kernels import distinct
from megalith.kernels.dtypes import F32, I64
from megalith.kernels.finite import is_finite
from megalith.kernels.jit import kernel
from support.twins import table as twin

keys_strategy = hnp.arrays(np.int64, st.integers(0, 300), elements=st.integers(-(2**63), 2**63 - 1))
few_keys_strategy = hnp.arrays(np.int64, st.integers(0, 300), elements=st.integers(-5, 5))


@kernel
def all_codes(secret: Secret, keys: I64, out: U64, back: I64) -> None:
    for i in range(keys.size):
        out[i] = codes.code_of(secret, keys[i])
        back[i] = codes.id_of(secret, out[i])


@kernel
def insert_all(arrays: Index, pool: I64, keys: I64) -> bool:
    """Put distinct keys into the index, row i for keys[i], time i + 7."""
    slots, parts = arrays.slots, arrays.parts
    scratch = np.empty(index.ROOM_SCRATCH, np.uint64)
    for i in range(keys.size):
        code = codes.code_of(arrays.secret, keys[i])
        record = codes.partition_of(code) * RECORD
        if not index.make_room(slots, parts, record, 1, pool, scratch):
            return False
        index.insert(slots, codes.home_of(parts, record, code), code, index.entry_of(i, i + 7))
        parts[record + USED] += 1
    return True


@kernel
def find_all(arrays: Index, keys: I64, rows: I64, times: I64) -> None:
    slots, parts = arrays.slots, arrays.parts
    for i in range(keys.size):
        code = codes.code_of(arrays.secret, keys[i])
        slot = index.find(
            slots, codes.home_of(parts, codes.partition_of(code) * RECORD, code), code
        )
        is_there = index.holds(slots, slot, code)
        rows[i] = index.row_of(slots[2 * slot + 1]) if is_there else -1
        times[i] = index.time_of(slots[2 * slot + 1]) if is_there else -1


@kernel
def match(slots: U64, at: int, word: np.uint64) -> int:
    return matches(slots, at, word)


@kernel
def copy(source: F32, begin: int, target: F32, at: int, count: int) -> None:
    copy_floats(source, begin, target, at, count)


@kernel
def atomics(words: I64) -> int:
    store_release(words, 0, 5)
    first = compare_exchange(words, 0, 5, 6)
    second = compare_exchange(words, 0, 5, 7)
    return load_acquire(words, 0) * 100 + first * 10 + second


def endless_pool() -> I64:
    words = np.zeros(POOL, np.int64)
    words[POOL_SLOTS] = 1 << 60
    return words


def code_array(keys: I64) -> U64:
    out = np.empty(keys.size, np.uint64)
    all_codes(twin.SECRET, keys, out, np.empty(keys.size, np.int64))
    return out


def checked_entries(arrays: Index, partition: int) -> dict[int, int]:
    """Slot by code of a partition, after checking that each is where a search from its home meets
    it."""
    slots, parts, record = arrays.slots, arrays.parts, partition * RECORD
    begin, end = int(index.begin_of(parts, record)), int(index.end_of(parts, record))
    is_used = slots[2 * begin + 1 : 2 * end : 2] != 0
    lines = is_used.reshape(-1, LINE)
    assert (lines == (np.arange(LINE) < lines.sum(axis=1)[:, None])).all(), (
        "entries come first in a line"
    )
    assert not lines[-1].any(), "the last line is free"
    used = begin + np.flatnonzero(is_used)
    for slot in used:
        home = int(codes.home_of(parts, record, slots[2 * slot]))
        assert begin <= home <= slot
        assert lines[(home - begin) // LINE : (slot - begin) // LINE].all(), (
            "all lines before it were full"
        )
    assert parts[record + USED] == used.size
    return {int(slots[2 * slot]): int(slot) for slot in used}


@given(keys_strategy)
def test_a_code_is_the_id_in_another_spelling(keys: I64) -> None:
    out, back = np.empty(keys.size, np.uint64), np.empty(keys.size, np.int64)
    all_codes(twin.SECRET, keys, out, back)
    np.testing.assert_array_equal(back, keys)
    assert [twin.id_of(int(code)) for code in out] == keys.tolist()
    assert out.tolist() == [twin.code_of(int(key)) for key in keys]
    codes.ids_of(twin.SECRET, out, back)
    np.testing.assert_array_equal(back, keys)


@settings(max_examples=50)
@given(keys_strategy.map(np.unique))
def test_the_index_finds_what_was_inserted_and_nothing_else(keys: I64) -> None:
    arrays = IndexMemory(10_000, 1, twin.SECRET).arrays
    assert insert_all(arrays, endless_pool(), keys)
    asked = np.concatenate([keys, keys + 1, np.array([0, -1], np.int64)])
    rows, times = np.empty(asked.size, np.int64), np.empty(asked.size, np.int64)
    find_all(arrays, asked, rows, times)
    expected = {int(key): i for i, key in enumerate(keys)}
    assert rows.tolist() == [expected.get(int(key), -1) for key in asked]
    assert times.tolist() == [
        expected[int(key)] + 7 if int(key) in expected else -1 for key in asked
    ]


def test_growing_keeps_every_entry_where_a_search_meets_it() -> None:
    memory = IndexMemory(200_000, 1, twin.SECRET)
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 100_000)
    assert insert_all(memory.arrays, endless_pool(), keys)
    assert memory.used == 100_000
    entries = [checked_entries(memory.arrays, partition) for partition in range(PARTITIONS)]
    assert sorted(code for part in entries for code in part) == sorted(code_array(keys).tolist())
    rows, times = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    find_all(memory.arrays, keys, rows, times)
    np.testing.assert_array_equal(rows, np.arange(keys.size))


def test_a_large_partition_grows_to_the_end_of_a_huge_page_unless_slots_are_counted() -> None:
    memory = IndexMemory(40_000_000, 1, twin.SECRET)
    parts, record = memory.arrays.parts, 5 * RECORD
    rounded = index.grown(parts, record, 3 * PAGE, True)
    assert 1.7 * 3 * PAGE <= rounded < 1.7 * 3 * PAGE + PAGE
    assert (parts[record + LAST] + LINE - rounded) % PAGE == 0
    assert index.grown(parts, record, 3 * PAGE, False) == int(1.7 * 3 * PAGE) // LINE * LINE
    assert index.grown(parts, record, 1000, True) == 1700


def test_ids_made_to_collide_at_the_end_of_a_partition_are_kept_in_a_longer_spill() -> None:
    # Codes 1..2000 share the last home of partition 0, whatever its capacity.
    keys = np.array([twin.id_of(code) for code in range(1, 2001)], np.int64)
    memory = IndexMemory(1_000_000, 1, twin.SECRET)
    empty = memory.nbytes
    rows, times = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    assert insert_all(memory.arrays, endless_pool(), keys)
    find_all(memory.arrays, keys, rows, times)
    np.testing.assert_array_equal(rows, np.arange(2000))
    assert checked_entries(memory.arrays, 0).keys() == set(range(1, 2001))
    assert memory.arrays.parts[SPILL] == 8 * LEAST_SPILL, "which holds 2,000 of them"
    assert memory.nbytes < empty + 16 * 2 * (2000 / 0.8 + 2000), (
        "it grows no more than for other keys"
    )


def test_ids_made_to_collide_are_refused_when_the_spill_has_no_more_addresses() -> None:
    memory, keys = (
        IndexMemory(10_000, 1, twin.SECRET),
        np.array([twin.id_of(7)], np.int64),
    )
    memory.arrays.parts[SPILL] = MOST_SPILL
    end = int(index.end_of(memory.arrays.parts, 0))
    filled = memory.arrays.slots[2 * (end - 2 * LINE) : 2 * (end - LINE)]
    filled[1::2] = 1
    filled[::2] = 5
    assert not insert_all(memory.arrays, endless_pool(), keys)


def crowd(seed: int, count: int) -> I64:
    """Keys of partition 0 in three dense heaps of codes, whose clusters are far longer than random
    keys ever make."""
    rng, size = np.random.default_rng(seed), 1 << 59
    heaps = [int(share * size) + rng.integers(0, 1 << 30, count // 3) for share in (0.4, 0.6, 0.9)]
    return np.array(
        [twin.id_of(int(code)) for code in rng.permutation(np.unique(np.concatenate(heaps)))],
        np.int64,
    )


def test_long_clusters_survive_growth_and_removal() -> None:
    memory, keys = IndexMemory(1_000_000, 1, twin.SECRET), crowd(1, 3000)
    arrays, crowded = memory.arrays, code_array(keys)
    assert insert_all(arrays, endless_pool(), keys)
    assert checked_entries(arrays, 0).keys() == set(crowded.tolist())
    gone = np.random.default_rng(2).permutation(crowded)[:2500]
    for code in gone:
        slot = index.find(arrays.slots, codes.home_of(arrays.parts, 0, code), code)
        index.remove(arrays.slots, arrays.parts, 0, slot)
        arrays.parts[USED] -= 1
    assert checked_entries(arrays, 0).keys() == set(crowded.tolist()) - set(gone.tolist())


def test_a_far_slot_that_was_emptied_since_does_not_make_the_partition_grow() -> None:
    """An empty slot looks like code 0, whose home is the last line: far away, with few entries
    between."""
    arrays, words = IndexMemory(1_000_000, 1, twin.SECRET).arrays, endless_pool()
    crowded = np.arange(1, 221).astype(np.uint64) * np.uint64(int(4.9e-5 * 2**59))
    keys = np.array([twin.id_of(int(code)) for code in crowded], np.int64)
    assert insert_all(arrays, words, keys)
    far = max(checked_entries(arrays, 0).values())
    arrays.parts[FAR] = far
    for code in crowded[80:]:
        slot = index.find(arrays.slots, codes.home_of(arrays.parts, 0, code), code)
        index.remove(arrays.slots, arrays.parts, 0, slot)
        arrays.parts[USED] -= 1
    assert far - arrays.parts[LAST] > index.SAMPLE * LINE
    capacity = int(arrays.parts[CAPACITY])
    assert index.make_room(
        arrays.slots, arrays.parts, 0, 1, words, np.empty(index.ROOM_SCRATCH, np.uint64)
    )
    assert arrays.parts[CAPACITY] == capacity
    assert checked_entries(arrays, 0).keys() == set(crowded[:80].tolist())


@settings(max_examples=50)
@given(st.lists(st.integers(0, 40), max_size=60, unique=True), st.data())
def test_removal_leaves_what_a_search_meets(tops: list[int], data: st.DataObject) -> None:
    # Codes next to each other, so that lines run over, and code 0, which looks like a free slot.
    keys = np.array([twin.id_of(top << 52) for top in tops], np.int64)
    arrays = IndexMemory(10_000, 1, twin.SECRET).arrays
    assert insert_all(arrays, endless_pool(), keys)
    gone = data.draw(st.sets(st.sampled_from(tops))) if tops else set()
    for top in gone:
        code = np.uint64(top << 52)
        slot = index.find(arrays.slots, codes.home_of(arrays.parts, 0, code), code)
        assert index.holds(arrays.slots, slot, code)
        index.remove(arrays.slots, arrays.parts, 0, slot)
        arrays.parts[USED] -= 1
    assert checked_entries(arrays, 0).keys() == {top << 52 for top in tops if top not in gone}


@given(st.lists(st.integers(0, 3), min_size=8, max_size=8), st.integers(0, 3))
def test_matches_compares_the_words_of_a_line(words: list[int], word: int) -> None:
    memory = IndexMemory(1000, 1, twin.SECRET).arrays.slots[:16]  # lines are aligned there
    memory[8:] = words
    assert match(memory, 8, np.uint64(word)) == sum(1 << i for i in range(8) if words[i] == word)


def test_codes_zero_and_all_ones_are_ordinary() -> None:
    keys = np.array([twin.id_of(0), twin.id_of(2**64 - 1)], np.int64)
    arrays = IndexMemory(1000, 1, twin.SECRET).arrays
    rows, times = np.empty(2, np.int64), np.empty(2, np.int64)
    find_all(arrays, keys, rows, times)
    assert rows.tolist() == [-1, -1]
    insert_all(arrays, endless_pool(), keys)
    find_all(arrays, keys, rows, times)
    assert rows.tolist() == [0, 1]


@given(keys_strategy | few_keys_strategy, st.integers(0, 300))
def test_group_is_a_stable_sort_by_partition(keys: I64, begin: int) -> None:
    begin = min(begin, keys.size)
    count = keys.size - begin
    sorted_codes, positions = np.empty(count, np.uint64), np.empty(count, np.int64)
    bounds, inputs = (
        np.empty(PARTITIONS + 1, np.int64),
        np.arange(3 * keys.size, dtype=np.float32).reshape(-1, 3),
    )
    ordered = np.empty((count, 3), np.float32)
    grouping.group(
        twin.SECRET, keys, inputs, begin, count, sorted_codes, positions, ordered, bounds
    )
    by_position = code_array(keys)
    order, counts = twin.group((by_position[begin:] >> np.uint64(59)).astype(np.int64))
    order += begin
    np.testing.assert_array_equal(positions, order)
    np.testing.assert_array_equal(ordered, inputs[order])
    np.testing.assert_array_equal(np.diff(bounds), counts)
    np.testing.assert_array_equal(sorted_codes, by_position[order])


@given(keys_strategy | few_keys_strategy)
def test_distinct_numbers_ids_by_first_appearance(keys: I64) -> None:
    found, numbers = np.empty(keys.size, np.int64), np.empty(keys.size, np.int32)
    count = distinct.distinct(distinct.SECRET, keys, found, numbers)
    expected_first, expected_numbers = twin.distinct(keys)
    np.testing.assert_array_equal(found[:count], keys[expected_first])
    np.testing.assert_array_equal(numbers, expected_numbers)


@given(
    hnp.arrays(
        np.float32, st.tuples(st.integers(0, 20), st.integers(1, 9)), elements=st.floats(width=32)
    )
)
def test_finite_checks_agree_with_numpy(values: F32) -> None:
    mask = np.empty(len(values), np.bool_)
    batches.finite_rows(values, mask)
    np.testing.assert_array_equal(mask, np.isfinite(values).all(axis=1))
    assert is_finite(values.reshape(-1)) == np.isfinite(values).all()


@given(few_keys_strategy)
def test_sums_by_group_are_those_of_numpy(keys: I64) -> None:
    values = np.arange(3 * keys.size, dtype=np.float32).reshape(-1, 3)
    _, group = twin.distinct(keys)
    groups = int(group.max(initial=-1)) + 1
    sums, counts = np.zeros((groups, 3), np.float32), np.zeros(groups, np.int64)
    batches.sum_groups(values, group.astype(np.int32), sums, counts)
    expected = np.zeros((groups, 3), np.float32)
    np.add.at(expected, group, values)
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(counts, np.bincount(group, minlength=groups))


@given(st.integers(0, 100), st.integers(0, 50), st.integers(0, 50))
def test_copy_floats_copies_exactly_the_run(count: int, begin: int, at: int) -> None:
    source, target = np.arange(200, dtype=np.float32), np.full(200, -1, np.float32)
    copy(source, begin, target, at, count)
    expected = np.full(200, -1, np.float32)
    expected[at : at + count] = source[begin : begin + count]
    np.testing.assert_array_equal(target, expected)


def test_atomics_swap_only_what_was_expected() -> None:
    assert atomics(np.zeros(1, np.int64)) == 6 * 100 + 10


def test_the_pool_hands_out_every_row_once_and_freed_ones_first() -> None:
    rows = RowMemory(np.zeros(4, np.float32), 1000).arrays
    rows.pool[POOL_LIMIT] = 10
    out = np.empty(20, np.int64)
    assert pool.take_rows(rows, 6, out) == 6
    assert sorted(out[:6]) == [0, 1, 2, 3, 4, 5]
    pool.give_rows(rows, np.array([4, 2], np.int64))
    assert pool.take_rows(rows, 20, out) == 6, "ten may be in use, four are"
    assert sorted(out[:6]) == [2, 4, 6, 7, 8, 9]
    assert pool.take_rows(rows, 1, out) == 0


def test_a_latched_partition_cannot_be_entered_twice() -> None:
    parts = np.zeros(PARTITIONS * RECORD, np.int64)

    @kernel
    def twice(parts: I64) -> tuple[bool, bool, bool]:
        first, second = latch.try_enter(parts, RECORD), latch.try_enter(parts, RECORD)
        latch.leave(parts, RECORD)
        return first, second, latch.try_enter(parts, RECORD)

    assert twice(parts) == (True, False, True)
    scan.leave_all(np.ones(PARTITIONS * RECORD, np.int64))
