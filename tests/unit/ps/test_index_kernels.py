"""The kernels of index, pool, batches and walks, each against a naive twin."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from megalith.ps.index import IndexMemory
from megalith.ps.kernels import batches, codes, grouping, index, latch, pool, scan
from megalith.ps.kernels._jit import kernel
from megalith.ps.kernels.atomics import compare_exchange, load_acquire, store_release
from megalith.ps.kernels.copying import copy_floats
from megalith.ps.kernels.dtypes import F32, I64
from megalith.ps.kernels.layout import CAPACITY, FIRST, PARTITIONS, POOL_LIMIT, RECORD, SPILL, U64, USED, Index
from megalith.ps.rows import RowMemory
from unit.ps import reference

keys_strategy = hnp.arrays(np.int64, st.integers(0, 300), elements=st.integers(-(2**63), 2**63 - 1))
few_keys_strategy = hnp.arrays(np.int64, st.integers(0, 300), elements=st.integers(-5, 5))


@kernel
def all_codes(keys: I64, out: U64, back: I64) -> None:
    for i in range(keys.size):
        out[i] = codes.code_of(keys[i])
        back[i] = codes.key_of(out[i])


@kernel
def insert_all(slots: U64, parts: I64, keys: I64) -> bool:
    """Put distinct keys into the index, row i for keys[i], time i + 7."""
    for i in range(keys.size):
        code = codes.code_of(keys[i])
        record = codes.partition_of(code) * RECORD
        if index.is_tight(slots, parts, record, 1) and not index.stretch(slots, parts, record, 1):
            return False
        slot = index.find(slots, codes.home_of(parts, record, code), code)
        index.insert(slots, slot, code, index.entry_of(i, i + 7))
        parts[record + USED] += 1
    return True


@kernel
def find_all(slots: U64, parts: I64, keys: I64, rows: I64, times: I64) -> None:
    for i in range(keys.size):
        code = codes.code_of(keys[i])
        slot = index.find(slots, codes.home_of(parts, codes.partition_of(code) * RECORD, code), code)
        is_there = index.holds(slots, slot, code)
        rows[i] = index.row_of(slots[2 * slot + 1]) if is_there else -1
        times[i] = index.time_of(slots[2 * slot + 1]) if is_there else -1


@kernel
def copy(source: F32, begin: int, target: F32, at: int, count: int) -> None:
    copy_floats(source, begin, target, at, count)


@kernel
def atomics(words: I64) -> int:
    store_release(words, 0, 5)
    first = compare_exchange(words, 0, 5, 6)
    second = compare_exchange(words, 0, 5, 7)
    return load_acquire(words, 0) * 100 + first * 10 + second


def code_array(keys: I64) -> U64:
    out = np.empty(keys.size, np.uint64)
    all_codes(keys, out, np.empty(keys.size, np.int64))
    return out


def slots_in_order(arrays: Index, partition: int) -> list[tuple[int, int]]:
    """(slot, code) of the partition's entries, after checking that everything beyond its range is zero."""
    first, capacity = (int(arrays.parts[partition * RECORD + field]) for field in (FIRST, CAPACITY))
    words = arrays.slots[2 * first : 2 * (first + capacity + SPILL)].reshape(-1, 2)
    return [(first + int(i), int(words[i, 0])) for i in np.flatnonzero(words[:, 1])]


@given(keys_strategy)
def test_a_code_is_the_key_in_another_spelling(keys: I64) -> None:
    out, back = np.empty(keys.size, np.uint64), np.empty(keys.size, np.int64)
    all_codes(keys, out, back)
    np.testing.assert_array_equal(back, keys)
    assert [reference.key_of(int(code)) for code in out] == keys.tolist()
    assert out.tolist() == [reference.code_of(int(key)) for key in keys]
    np.testing.assert_array_equal(codes.keys_of(out), keys)


@settings(max_examples=50)
@given(keys_strategy.map(np.unique))
def test_the_index_finds_what_was_inserted_and_nothing_else(keys: I64) -> None:
    arrays = IndexMemory(10_000, 1).arrays
    assert insert_all(arrays.slots, arrays.parts, keys)
    asked = np.concatenate([keys, keys + 1, np.array([0, -1], np.int64)])
    rows, times = np.empty(asked.size, np.int64), np.empty(asked.size, np.int64)
    find_all(arrays.slots, arrays.parts, asked, rows, times)
    expected = {int(key): i for i, key in enumerate(keys)}
    assert rows.tolist() == [expected.get(int(key), -1) for key in asked]
    assert times.tolist() == [expected[int(key)] + 7 if int(key) in expected else -1 for key in asked]


def test_growing_keeps_every_entry_in_falling_order_of_codes() -> None:
    memory = IndexMemory(200_000, 1)
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 100_000)
    assert insert_all(memory.arrays.slots, memory.arrays.parts, keys)
    assert memory.used == 100_000
    entries = [slots_in_order(memory.arrays, partition) for partition in range(PARTITIONS)]
    assert sorted(code for part in entries for _, code in part) == sorted(code_array(keys).tolist())
    for part in entries:
        assert [code for _, code in part] == sorted((code for _, code in part), reverse=True)
    rows, times = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    find_all(memory.arrays.slots, memory.arrays.parts, keys, rows, times)
    np.testing.assert_array_equal(rows, np.arange(keys.size))


def test_keys_made_to_collide_at_the_end_of_a_partition_are_kept() -> None:
    # Codes 1..2000 share the last home of partition 0, whatever its capacity; the spill takes some of them.
    keys = np.array([reference.key_of(code) for code in range(1, 2001)], np.int64)
    memory = IndexMemory(1_000_000, 1)
    empty = memory.nbytes
    rows, times = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    fitted = insert_all(memory.arrays.slots, memory.arrays.parts, keys)
    assert not fitted, "identical homes never fit however far the partition grows"
    find_all(memory.arrays.slots, memory.arrays.parts, keys, rows, times)
    kept = memory.used
    assert SPILL - 4 < kept < SPILL + 8
    assert memory.nbytes < empty + 2000 * 16, "a growth that does not help is taken back"
    np.testing.assert_array_equal(rows, np.where(np.arange(2000) < kept, np.arange(2000), -1))


def test_codes_zero_and_all_ones_are_ordinary() -> None:
    keys = np.array([reference.key_of(0), reference.key_of(2**64 - 1)], np.int64)
    arrays = IndexMemory(1000, 1).arrays
    rows, times = np.empty(2, np.int64), np.empty(2, np.int64)
    find_all(arrays.slots, arrays.parts, keys, rows, times)
    assert rows.tolist() == [-1, -1]
    insert_all(arrays.slots, arrays.parts, keys)
    find_all(arrays.slots, arrays.parts, keys, rows, times)
    assert rows.tolist() == [0, 1]


@given(keys_strategy | few_keys_strategy, st.integers(0, 300))
def test_group_is_a_stable_sort_by_partition(keys: I64, begin: int) -> None:
    begin = min(begin, keys.size)
    count = keys.size - begin
    sorted_codes, positions = np.empty(count, np.uint64), np.empty(count, np.int64)
    bounds, inputs = np.empty(PARTITIONS + 1, np.int64), np.arange(3 * keys.size, dtype=np.float32).reshape(-1, 3)
    ordered = np.empty((count, 3), np.float32)
    grouping.group(keys, inputs, begin, count, sorted_codes, positions, ordered, bounds)
    by_position = code_array(keys)
    order, counts = reference.group((by_position[begin:] >> np.uint64(59)).astype(np.int64))
    order += begin
    np.testing.assert_array_equal(positions, order)
    np.testing.assert_array_equal(ordered, inputs[order])
    np.testing.assert_array_equal(np.diff(bounds), counts)
    np.testing.assert_array_equal(sorted_codes, by_position[order])


@given(keys_strategy | few_keys_strategy)
def test_distinct_numbers_keys_by_first_appearance(keys: I64) -> None:
    first, group = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    count = batches.distinct(keys, first, group)
    expected_first, expected_group = reference.distinct(keys)
    np.testing.assert_array_equal(first[:count], expected_first)
    np.testing.assert_array_equal(group, expected_group)


@given(hnp.arrays(np.float32, st.tuples(st.integers(0, 20), st.integers(1, 9)), elements=st.floats(width=32)))
def test_finite_checks_agree_with_numpy(values: F32) -> None:
    mask = np.empty(len(values), np.bool_)
    batches.finite_rows(values, mask)
    np.testing.assert_array_equal(mask, np.isfinite(values).all(axis=1))
    assert batches.is_finite(values.reshape(-1)) == np.isfinite(values).all()


@given(few_keys_strategy)
def test_sums_by_group_are_those_of_numpy(keys: I64) -> None:
    values = np.arange(3 * keys.size, dtype=np.float32).reshape(-1, 3)
    _, group = reference.distinct(keys)
    groups = int(group.max(initial=-1)) + 1
    sums, counts = np.zeros((groups, 3), np.float32), np.zeros(groups, np.int64)
    batches.sum_groups(values, group, sums, counts)
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
