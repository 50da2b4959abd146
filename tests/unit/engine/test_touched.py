import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.engine.table.touched import DEFAULT_CAPACITY, TouchedIdSet
from megalith.errors import InvalidSetting, MalformedArray
from support.twins.admission import DictKeySet


def run_threads(count, work):
    """Run work(0) .. work(count - 1) at once, and pass on the first error."""
    errors = []

    def guarded(index):
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.golden("TouchedKeySetOpsTest.test_touched_key_set_basic", "G22")
def test_all_touched_ids_up_to_the_capacity_are_taken_once():
    keys = TouchedIdSet(1000)
    assert keys.add(np.arange(1000)) == 0
    assert keys.size == 1000
    np.testing.assert_array_equal(keys.steal(), np.arange(1000))
    assert keys.size == 0
    assert keys.steal().size == 0


@pytest.mark.golden("TouchedKeySetOpsTest.test_touched_key_set_overflow", "G22")
def test_a_full_set_drops_all_it_held_and_counts_them():
    keys = TouchedIdSet(1000)
    assert keys.add(np.arange(1005)) == 1001
    assert keys.dropped == 1001
    assert set(keys.steal()) == {1001, 1002, 1003, 1004}


@pytest.mark.golden("HOPSCOTCH_HASH_SET.simple_test")
def test_a_thousand_random_ids_are_all_taken():
    random = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1000)
    keys = TouchedIdSet(1000)
    assert keys.add(random) == 0
    np.testing.assert_array_equal(np.sort(keys.steal()), np.sort(random))


@pytest.mark.golden("HOPSCOTCH_HASH_SET.multithread_test")
@pytest.mark.parametrize("threads", [1, 2, 10])
def test_ids_that_many_threads_touch_are_taken_once_each(threads):
    """Every thread inserts its part, and all of them a part that others insert too."""
    random = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, DEFAULT_CAPACITY)
    parts = np.array_split(random, threads)
    keys, dropped = TouchedIdSet(), []

    def insert(index):
        dropped.append(keys.add(parts[index]) + keys.add(random[:10000]))

    run_threads(threads, insert)
    assert sum(dropped) == 0
    np.testing.assert_array_equal(np.sort(keys.steal()), np.unique(random))


@pytest.mark.golden("HOPSCOTCH_HASH_SET.overflow_test")
def test_ten_threads_overflow_a_set_exactly_twenty_times():
    per_thread = 2 * DEFAULT_CAPACITY + 1000
    keys, dropped = TouchedIdSet(), []

    def insert(index):
        own = np.arange(index * per_thread, (index + 1) * per_thread)
        dropped.extend(keys.add(chunk) for chunk in np.array_split(own, 64))

    run_threads(10, insert)
    assert sum(dropped) == keys.dropped == 20 * (DEFAULT_CAPACITY + 1)
    assert keys.size == 10 * per_thread - sum(dropped)


def test_a_repeated_id_overflows_a_full_set_too():
    keys = TouchedIdSet(2)
    assert keys.add(np.array([1, 2, 3])) == 0
    assert keys.add(np.array([3])) == 3
    np.testing.assert_array_equal(keys.steal(), [3])


def test_a_set_that_was_stolen_or_overflowed_works_like_new():
    """Small sets are emptied key by key: runs of colliding keys must vanish completely."""
    rng = np.random.default_rng(2)
    keys = TouchedIdSet(1000)
    for size in (3, 200, 1000, 5, 0, 999):
        batch = rng.integers(-(2**63), 2**63 - 1, size)
        assert keys.add(batch) == 0
        np.testing.assert_array_equal(keys.steal(), batch)
        assert not keys._slots.any()


@given(
    capacity=st.integers(1, 20),
    batches=st.lists(
        st.lists(st.one_of(st.integers(-30, 30), st.sampled_from([-(2**63), 2**63 - 1]))),
        max_size=5,
    ),
)
@settings(max_examples=200)
def test_the_kernel_does_what_its_twin_does(capacity, batches):
    keys, twin = TouchedIdSet(capacity), DictKeySet(capacity)
    for batch in batches:
        assert keys.add(np.array(batch, np.int64)) == twin.add(batch)
        assert keys.size == len(twin.keys)
    assert keys.steal().tolist() == twin.steal()


def test_stealing_while_others_insert_loses_and_repeats_nothing():
    keys, stolen = TouchedIdSet(), []

    def work(index):
        if index < 3:
            for chunk in np.array_split(np.arange(index * 10**6, index * 10**6 + 300000), 100):
                assert keys.add(chunk) == 0
        else:
            stolen.extend(keys.steal() for _ in range(100))

    run_threads(4, work)
    everything = np.concatenate([*stolen, keys.steal()])
    expected = np.concatenate(
        [np.arange(index * 10**6, index * 10**6 + 300000) for index in range(3)]
    )
    np.testing.assert_array_equal(np.sort(everything), expected)


def test_an_unused_set_takes_addresses_but_no_memory():
    before = rss_bytes()
    keys = TouchedIdSet(20_000_000)
    assert keys._slots.nbytes + keys._listed.nbytes > 400_000_000
    assert keys.add(np.empty(0, np.int64)) == 0
    assert keys.steal().size == 0
    assert rss_bytes() - before < 50_000_000


def rss_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_bad_input_is_refused():
    with pytest.raises(InvalidSetting, match="capacity 0"):
        TouchedIdSet(0)
    keys = TouchedIdSet(10)
    for bad in (np.zeros(3, np.int32), np.zeros((2, 2), np.int64), np.zeros(6, np.int64)[::2]):
        with pytest.raises(MalformedArray, match="packed int64"):
            keys.add(bad)
