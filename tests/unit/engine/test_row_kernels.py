"""The kernels that find, drop, walk over and hand out rows, each against a naive twin, in crowded
partitions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.engine.kernels import (
    actions,
    erase,
    gather,
    index,
    ownership,
    pool,
    scan,
    touched,
    write,
)
from megalith.engine.kernels.layout import (
    CAPACITY,
    GROW_AT,
    GROWTH,
    LEAST_SPILL,
    PARTITIONS,
    POOL,
    POOL_LIMIT,
    POOL_SLOTS,
    RECORD,
    U64,
    UNLIMITED,
    USED,
)
from megalith.engine.table.rows import RowMemory
from megalith.kernels import mixing
from megalith.kernels.dtypes import I64
from megalith.kernels.jit import kernel
from megalith.wire import routing
from support.small_table import DIM, NEVER, SmallTable, crowded_keys, row_of
from support.twins import codecs
from support.twins import table as twin

DAY_S = 86400
NOW_S = 10 * DAY_S
crowds = st.lists(crowded_keys, max_size=120)
times_of_crowds = st.dictionaries(crowded_keys, st.integers(NOW_S - 4, NOW_S + 1), max_size=100)


def pool_of(most_slots: int) -> I64:
    """A pool for an index of so many slots."""
    words = np.zeros(POOL, np.int64)
    words[POOL_SLOTS] = most_slots
    return words


def scratch() -> U64:
    return np.empty(index.ROOM_SCRATCH, np.uint64)


def array(keys) -> I64:
    return np.array(list(keys), np.int64)


def table_of(time_by_key: dict[int, int]) -> SmallTable:
    table = SmallTable()
    table.add(array(time_by_key), array(time_by_key.values()))
    return table


@given(added=crowds, asked=crowds)
@settings(max_examples=80)
def test_erase_drops_the_ids_it_is_given_and_nothing_else(added, asked):
    table = SmallTable()
    table.add(array(added), 7)
    assert table.entries() == dict.fromkeys(added, 7)
    dropped = np.full(len(asked), -7)
    count = erase.erase(table.index.arrays, table.memory.arrays, array(asked), dropped)
    assert count == len({*added} & {*asked})
    assert {*dropped[:count].tolist()} == {*added} & {*asked}
    assert table.entries() == dict.fromkeys({*added} - {*asked}, 7)
    table.add(array(asked), 8)
    assert table.entries() == dict.fromkeys(added, 7) | dict.fromkeys(asked, 8)


@given(added=times_of_crowds, asked=crowds)
@settings(max_examples=60)
def test_reading_by_id_is_reading_a_dict(added, asked):
    table = table_of(added)
    keys, arrays, values = array([*asked, *added]), table.index.arrays, table.memory.arrays.values
    is_there = np.array([key in added for key in keys.tolist()], np.bool_)
    expected = np.where(is_there[:, None], row_of(keys), 0)
    out = np.full((keys.size, DIM), 9, np.float32)
    assert gather.gather(arrays, values, DIM, keys, out) == is_there.sum()
    np.testing.assert_array_equal(out, expected)
    out[:] = 9
    assert (
        gather.gather_late(arrays, values, DIM, keys, np.arange(keys.size)[::-1].copy(), out)
        == is_there.sum()
    )
    np.testing.assert_array_equal(out, expected)
    out, times, found = np.zeros_like(out), np.full(keys.size, 9), np.empty(keys.size, np.bool_)
    gather.gather_entries(arrays, values, DIM, keys, out, times)
    np.testing.assert_array_equal(out, expected)
    assert times.tolist() == [added.get(key, -1) for key in keys.tolist()]
    gather.contains(arrays, keys, found)
    np.testing.assert_array_equal(found, is_there)


@given(
    added=times_of_crowds,
    shortest=st.integers(0, 3),
    least=st.integers(-1, 4),
    ties=st.integers(0, 20),
    most=st.integers(0, 60),
    room=st.integers(0, 100),
)
@settings(max_examples=100)
def test_expiry_lists_and_drops_what_is_overdue_within_its_quota(
    added, shortest, least, ties, most, room
):
    table, expire_s = table_of(added), np.full(1 << 15, shortest, np.int64)
    expire_s[::2] += 1  # slots differ
    late = {key: twin.overdue_s(key, added[key], expire_s, NOW_S) for key in table.keys_in_slots()}
    out = np.full(room, -7)
    count = scan.list_overdue(table.index.arrays, expire_s, NOW_S, out)
    listed = [seconds for seconds in late.values() if seconds >= 0]
    assert count == len(listed)
    assert out.tolist() == [*listed[:room], *[-7] * (room - count)]
    most = min(most, len(added))
    kept, dropped, equals = dict(added), 0, ties
    for key, seconds in late.items():
        is_tie = seconds == least and equals > 0
        if dropped < most and (seconds > least or is_tie):
            del kept[key]
            dropped, equals = dropped + 1, equals - is_tie
    gone = np.empty(most, np.int64)
    arrays = table.index.arrays, table.memory.arrays
    count = scan.drop_overdue(*arrays, expire_s, NOW_S, least, ties, most, gone)
    assert count == dropped
    assert table.entries() == kept
    assert sorted(gone[:count].tolist()) == sorted(added.keys() - kept.keys())


@given(
    added=times_of_crowds,
    limit=st.integers(1, 50),
    bounds=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
    | st.just((0, 2**64 - 1)),
    expires=st.booleans(),
)
@settings(max_examples=100)
def test_a_dump_is_a_part_of_the_walk(added, limit, bounds, expires):
    table, (first, last) = table_of(added), sorted(bounds)
    expire_s = np.full(1 << 15, 2, np.int64) if expires else NEVER
    code_by_key = {key: twin.code_of(key) for key in twin.walk([*added])}
    alive = [
        key
        for key, code in code_by_key.items()
        if first <= code <= last
        and not (expires and twin.overdue_s(key, added[key], expire_s, NOW_S) >= 0)
    ][:limit]
    keys, times, out = (
        np.empty(limit, np.int64),
        np.empty(limit, np.int64),
        np.empty((limit, DIM), np.float32),
    )
    got = np.empty(limit, np.uint64)
    arrays = table.index.arrays, table.memory.arrays
    count = scan.dump(
        *arrays, np.uint64(first), np.uint64(last), expire_s, NOW_S, got, keys, out, times
    )
    assert keys[:count].tolist() == alive
    assert got[:count].tolist() == [code_by_key[key] for key in alive]
    assert times[:count].tolist() == [added[key] for key in alive]
    np.testing.assert_array_equal(out[:count], row_of(keys[:count]))


@given(rounds=st.lists(st.tuples(crowds, crowds, st.booleans()), max_size=4))
@settings(max_examples=60)
def test_touched_bits_are_a_set(rounds):
    table, bits = SmallTable(), set()
    for keys, lifted, everything in rounds:
        told = table.add(array(keys), 1, track=True).tolist()
        assert sorted(told) == sorted({*keys} - bits)
        bits |= {*keys}
        if everything:
            touched.lift_all(table.index.arrays)
            bits = set()
        else:
            touched.lift(table.index.arrays, array(lifted))
            bits -= {*lifted}
    table.entries()


@given(
    limit=st.integers(0, 40),
    calls=st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=12),
)
def test_the_pool_is_a_stack_of_freed_rows_over_a_counter(limit, calls):
    rows = RowMemory(np.zeros(4, np.float32), 1000).arrays
    rows.pool[POOL_LIMIT] = limit
    used, freed, following = set(), [], 0
    for is_taking, count in calls:
        if not is_taking:
            given_back = sorted(used)[:count]
            pool.give_rows(rows, array(given_back))
            used -= {*given_back}
            freed += given_back
            continue
        out = np.full(40, -1)
        granted = pool.take_rows(rows, count, out)
        assert granted == min(count, max(0, limit - len(used)))
        taken = out[:granted].tolist()
        again = min(granted, len(freed))
        assert sorted(taken) == sorted(
            [*freed[len(freed) - again :], *range(following, following + granted - again)]
        )
        assert (out[granted:] == -1).all()
        used, freed, following = (
            used | {*taken},
            freed[: len(freed) - again],
            following + granted - again,
        )


@given(added=times_of_crowds, more=st.integers(1, 128), partition=st.sampled_from([0, 1, 31]))
@settings(max_examples=60)
def test_a_partition_grows_by_whole_steps_when_it_has_to_and_keeps_its_entries(
    added, more, partition
):
    table = table_of(added)
    arrays, record = table.index.arrays, partition * RECORD
    after, used = int(arrays.parts[record + CAPACITY]), int(arrays.parts[record + USED])
    while after <= (used + more) / GROW_AT:
        after = int(after * GROWTH) // 4 * 4
    assert index.make_room(arrays.slots, arrays.parts, record, more, pool_of(UNLIMITED), scratch())
    assert arrays.parts[record + CAPACITY] == after
    assert table.entries() == added


@given(added=times_of_crowds, most=st.integers(0, 40_000), partition=st.integers(0, PARTITIONS - 1))
@settings(max_examples=30)
def test_growth_is_allowed_while_all_slots_stay_within_the_most(added, most, partition):
    slots, parts, _ = table_of(added).index.arrays
    others = sum(int(parts[p * RECORD + CAPACITY]) for p in range(PARTITIONS) if p != partition)
    record, capacity = partition * RECORD, int(parts[partition * RECORD + CAPACITY])
    allowed = most - others - PARTITIONS * LEAST_SPILL
    assert index.most_capacity(parts, record, most) == allowed
    more, after = int(capacity * GROW_AT), capacity
    while after <= (int(parts[record + USED]) + more) / GROW_AT:
        after = int(after * GROWTH) // 4 * 4
    fits = after in (capacity, min(after, allowed))
    assert index.make_room(slots, parts, record, more, pool_of(most), scratch()) == fits
    assert parts[record + CAPACITY] == (after if fits else capacity)


@given(added=times_of_crowds, factor=st.floats(1, 20))
@settings(max_examples=40)
def test_stretching_keeps_every_entry_whatever_the_capacity(added, factor):
    table = table_of(added)
    slots, parts, _ = table.index.arrays
    capacity = int(parts[CAPACITY] * factor) // 4 * 4
    begin = int(index.begin_of(parts, 0))
    parts[CAPACITY] = capacity
    index.stretch(slots, parts, 0, begin, scratch())
    assert parts[CAPACITY] == capacity
    assert table.entries() == added


@given(
    lows=st.lists(st.integers(0, 600), min_size=300, max_size=900),
    limit=st.integers(0, 700),
    barred=st.integers(1, 7),
)
@settings(max_examples=30)
def test_blocks_of_new_ids_get_rows_until_there_are_none(lows, limit, barred):
    # One partition, several blocks: after the first, rows are claimed before the keys are looked
    # for.
    table = SmallTable()
    table.memory.arrays.pool[POOL_LIMIT] = limit
    keys = array(twin.id_of(low << 48) for low in lows)
    admitted = keys % barred != 1
    outcome = np.empty(keys.size, np.uint8)
    result = table.writer.write(
        actions.Assign(DIM), keys, row_of(keys), np.array([5]), admitted, outcome=outcome
    )
    expected, kept = [], {}
    for key, is_admitted in zip(keys.tolist(), admitted, strict=True):
        if key in kept:
            expected.append(write.EXISTING)
        elif not is_admitted:
            expected.append(write.BARRED)
        elif len(kept) < limit:
            kept[key] = 5
            expected.append(write.CREATED)
        else:
            expected.append(write.REFUSED)
    assert outcome.tolist() == expected
    assert (result.created, result.refused, result.barred) == (
        len(kept),
        expected.count(write.REFUSED),
        expected.count(write.BARRED),
    )
    assert table.entries() == kept


@given(
    keys=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    num_ps=st.integers(1, 3),
    mine=st.integers(0, 2),
)
def test_ownership_is_that_of_the_routing_map(keys, num_ps, mine):
    owners = routing.even_owners(num_ps)
    expected = all(owners[codecs.mix(key) >> 54] == mine for key in keys)
    assert ownership.all_owned(array(keys), owners, mine) == expected


@kernel
def mix_all(words: U64, out: U64) -> None:
    for i in range(words.size):
        out[i] = mixing.mix(words[i])


@given(words=st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_mix_is_the_finalizer_in_python_integers(words):
    out = np.empty(len(words), np.uint64)
    mix_all(np.array(words, np.uint64), out)
    assert out.tolist() == [codecs.mix(word) for word in words]
