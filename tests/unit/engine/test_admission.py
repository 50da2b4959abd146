import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.admission.filters import NoFilter, ProbabilisticFilter, admission_filter
from megalith.errors import (
    CheckpointDamaged,
    InvalidRequest,
    InvalidSetting,
    MalformedArray,
    ShapeMismatch,
)
from megalith.schema.admission import AdmissionConfig, FilterKind
from support.twins.admission import ExactFilter

MANY = 1_000_000


def thresholds(default=0, **by_slot):
    return AdmissionConfig(
        default_threshold=default,
        threshold_by_slot={int(slot[1:]): t for slot, t in by_slot.items()},
    ).thresholds()


def seen(*keys):
    return np.array(keys, np.int64)


def admit(filter_, keys, counts=None):
    keys = np.asarray(keys, np.int64)
    counts = np.ones_like(keys) if counts is None else np.asarray(counts, np.int64)
    return filter_.admit(keys, counts).tolist()


def old_count(filter_, key, count=1):
    """What Monolith's `add` returns: the count before this sighting."""
    before = int(filter_.counts_of(seen(key))[0])
    admit(filter_, [key], [count])
    return before


FILTERS = {
    "hash_filter, 1 byte": lambda capacity: CountingFilter.plain(
        thresholds(1), capacity, cell_bytes=1
    ),
    "hash_filter, 2 bytes": lambda capacity: CountingFilter.plain(thresholds(1), capacity),
    "sliding": lambda capacity: CountingFilter.sliding(thresholds(1), capacity, 10),
}


@pytest.mark.golden("HashFilterTest.test_simple", "SlidingHashFilterTest.test_simple")
@pytest.mark.parametrize("build", FILTERS.values(), ids=FILTERS.keys())
@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_a_filter_counts_an_id_up_to_fifteen_and_stays_there(build, capacity):
    filter_ = build(capacity)
    for i in range(16):
        assert old_count(filter_, 1) == i
        assert filter_.counts_of(seen(1)) == [min(i + 1, 15)]
    assert old_count(filter_, 1) == 15
    assert filter_.counts_of(seen(1)) == [15]


@pytest.mark.golden("HashFilterTest.test_count", "SlidingHashFilterTest.test_count")
@pytest.mark.parametrize("build", FILTERS.values(), ids=FILTERS.keys())
def test_a_filter_counts_its_elements_and_a_copy_of_its_state_is_equal(build):
    filter_ = build(1000)
    keys = np.random.default_rng(0).integers(0, 2**63 - 1, 11)
    admit(filter_, keys)
    assert filter_.num_elements == 11
    filter_.clear()
    admit(filter_, [5, 5, 5], [1, 20, 1])
    assert filter_.num_elements == 1
    clone = build(1000)
    clone.restore(filter_.state())
    for name, array in filter_.state().items():
        np.testing.assert_array_equal(clone.state()[name], array, err_msg=name)


def error_rate(filter_):
    """The share of a million random ids, each seen once, whose count is not 1."""
    keys = np.unique(np.random.default_rng(1).integers(0, 2**63 - 1, MANY))
    np.random.default_rng(2).shuffle(keys)
    filter_.admit(keys, np.ones_like(keys))
    return (filter_.counts_of(keys) != 1).mean()


@pytest.mark.golden("HashFilterTest.compare_to_unordered_map")
@pytest.mark.parametrize(
    ("cell_bytes", "fill_rate", "expected"), [(1, 4, 0.0208), (2, 2, 0.000242)]
)
def test_a_plain_filter_of_a_million_ids_errs_as_seldom_as_expected(
    cell_bytes, fill_rate, expected
):
    filter_ = CountingFilter.plain(thresholds(1), MANY, fill_rate, cell_bytes)
    assert expected / 2 < error_rate(filter_) < expected * 2
    assert filter_.num_failures == 0


@pytest.mark.golden("SlidingHashFilterTest.compare_to_unordered_map")
@pytest.mark.parametrize(("capacity", "expected"), [(1_000_000, 0.00908), (500_000, 0.5)])
def test_a_sliding_filter_of_a_million_ids_errs_as_seldom_as_expected(capacity, expected):
    filter_ = CountingFilter.sliding(thresholds(1), capacity, 10)
    assert expected / 2 < error_rate(filter_) < expected * 1.5
    assert filter_.num_failures < MANY * 1e-4


@pytest.mark.golden("HashFilterTest.SkipZeroThresholdFeatures")
def test_ids_of_threshold_zero_are_admitted_and_not_counted():
    filter_ = CountingFilter.plain(thresholds(0, s1=1), 100)
    free, counted = np.arange(5) << 17, (1 << 48) + (np.arange(5) << 17)
    assert admit(filter_, free) == [True] * 5
    assert admit(filter_, counted) == [False] * 5
    assert filter_.num_elements == 5
    assert admit(filter_, counted) == [True] * 5


@pytest.mark.golden("HashFilterOpsTest.test_hash_filter_basic")
def test_an_id_is_admitted_after_its_threshold_of_sightings():
    filter_ = CountingFilter.sliding(thresholds(3), 100, 7)
    ids = [1, 3 << 17, 1]
    assert admit(filter_, ids) == [False, False, False]
    assert admit(filter_, ids) == [False, False, True]
    assert admit(filter_, ids) == [True, False, True]
    assert admit(filter_, ids) == [True, True, True]


@pytest.mark.golden("HashFilterOpsTest.test_hash_filter_save_restore")
def test_a_restored_filter_goes_on_counting_where_it_was_saved():
    filter_ = CountingFilter.sliding(thresholds(3), 100, 7)
    ids = [1, 3 << 17, 1]
    admit(filter_, ids)
    admit(filter_, ids)
    state = filter_.state()
    admit(filter_, ids)
    restored = CountingFilter.sliding(thresholds(3), 100, 7)
    restored.restore(state)
    assert state["elements"].shape == (7,)
    assert admit(restored, ids) == [True, False, True]
    assert admit(restored, ids) == [True, True, True]


@pytest.mark.golden("HashFilterOpsTest.test_hash_filter_save_restore_across_multiple_filters")
def test_a_filter_whose_window_has_moved_on_is_saved_and_restored_whole():
    """Blocks of capacity 3 that are full at 2: after two runs the window has moved on four
    times."""
    filter_ = CountingFilter.sliding(thresholds(2), 300, 100)
    ids = [1, 1 << 17, 2 << 17, 1]
    assert admit(filter_, ids) == [False] * 4
    assert admit(filter_, ids) == [True, False, False, True]
    state = filter_.state()
    np.testing.assert_array_equal(state["elements"], [2] * 4 + [0] * 96)
    head, head_increment, failures = state["counters"]
    assert (head, head_increment, failures) == (4, 4, 0)
    restored = CountingFilter.sliding(thresholds(2), 300, 100)
    restored.restore(state)
    assert admit(restored, ids) == [True] * 4


@pytest.mark.golden(
    "HashFilterOpsTest.test_dummy_hash_filter_basic",
    "HashFilterOpsTest.test_dummy_hash_filter_save_restore",
)
@pytest.mark.parametrize(
    "config", [AdmissionConfig(kind=FilterKind.NO_FILTER, default_threshold=3), AdmissionConfig()]
)
def test_without_a_filter_every_id_is_admitted_and_nothing_is_saved(config):
    filter_ = admission_filter(config)
    assert isinstance(filter_, NoFilter)
    assert admit(filter_, [1, 3 << 17, 1]) == [True] * 3
    assert filter_.state() == {}
    filter_.restore({})


@pytest.mark.golden("HashFilterOpsTest.test_restore_not_found")
def test_a_filter_is_not_restored_from_a_state_that_is_not_there():
    filter_ = CountingFilter.sliding(thresholds(3), 100)
    with pytest.raises(CheckpointDamaged, match="lacks layout, counters, elements, blocks, cells"):
        filter_.restore({})


@pytest.mark.golden("HashTableOpsTest.test_hash_table_and_hash_filter_save_restore_hook_together")
def test_a_restored_filter_asks_for_the_sightings_after_its_save_again():
    filter_ = CountingFilter.sliding(thresholds(2), 100)
    saved = []
    for expected in (False, False, True):
        assert admit(filter_, [0]) == [expected]
        saved.append(filter_.state())
    filter_.restore(saved[0])
    assert admit(filter_, [0]) == [False]
    assert admit(filter_, [0]) == [True]


@pytest.mark.parametrize("threshold", [1, 15, 16, 100, 65535])
@pytest.mark.parametrize("kind", [FilterKind.PLAIN, FilterKind.SLIDING])
def test_an_id_is_admitted_at_the_sighting_after_its_threshold(kind, threshold):
    filter_ = admission_filter(
        AdmissionConfig(kind=kind, default_threshold=threshold, capacity=1000)
    )
    ids = np.full(threshold + 2, 123456789, np.int64)
    assert admit(filter_, ids) == [False] * threshold + [True, True]


def test_slots_have_their_own_thresholds():
    filter_ = admission_filter(
        AdmissionConfig(
            default_threshold=2, threshold_by_slot={5: 0, 6: 20, 32767: 1}, capacity=1000
        )
    )
    sightings = [
        [admit(filter_, [(slot << 48) + 7])[0] for _ in range(25)] for slot in (0, 5, 6, 32767)
    ]
    assert [answers.index(True) for answers in sightings] == [2, 0, 20, 1]


def test_a_count_of_several_sightings_adds_up():
    filter_ = CountingFilter.sliding(thresholds(5), 100)
    assert admit(filter_, [9, 9, 9], [2, 3, 1]) == [False, False, True]


def test_ids_not_seen_for_a_whole_capacity_are_forgotten_and_others_carried_on():
    filter_ = CountingFilter.sliding(thresholds(3), 600, 5)
    stream = np.random.default_rng(3).integers(0, 2**48, 3000)
    admit(filter_, [77 << 17, 99 << 17])
    for chunk in np.array_split(stream, 60):
        admit(filter_, [77 << 17])
        admit(filter_, chunk)
    assert filter_.counts_of(seen(77 << 17)) == [15]
    assert filter_.counts_of(seen(99 << 17)) == [0]
    assert filter_.num_elements <= 5 * 150


def test_an_id_that_finds_no_cell_is_admitted_and_counted_as_a_failure():
    filter_ = CountingFilter.plain(thresholds(15), 1, fill_rate=1)
    crowd = np.arange(1, 200, dtype=np.int64) << 17
    answers = admit(filter_, crowd)
    assert not any(answers[:64])
    assert filter_.num_failures == sum(answers) > 0
    assert filter_.counts_of(crowd[-1:]) == [15]


@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=20), max_size=6
    ),
    threshold=st.integers(0, 15),
    build=st.sampled_from([CountingFilter.plain, CountingFilter.sliding]),
)
@settings(max_examples=100)
def test_the_filters_do_what_an_exact_one_does_while_nothing_collides(batches, threshold, build):
    filter_, twin = build(thresholds(threshold), 10000), ExactFilter(threshold)
    for batch in batches:
        keys, counts = [key << 17 for key, _ in batch], [count for _, count in batch]
        assert admit(filter_, keys, counts) == twin.admit(keys, counts)


def test_threads_lose_no_sighting():
    filter_ = CountingFilter.sliding(thresholds(40000), 100000)
    keys = np.arange(1, 51, dtype=np.int64) << 17

    def work():
        for _ in range(500):
            filter_.admit(keys, np.ones_like(keys))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(filter_.counts_of(keys), [4000] * 50)


@pytest.mark.parametrize(("cell_bytes", "dtype"), [(1, np.uint8), (2, np.uint16), (4, np.uint32)])
def test_state_has_the_cells_of_used_blocks_only(cell_bytes, dtype):
    filter_ = CountingFilter.sliding(thresholds(3), 1000, 8, cell_bytes)
    assert filter_.state()["cells"].shape[0] == 0
    admit(filter_, [1, 2])
    state = filter_.state()
    assert state["cells"].dtype == dtype
    np.testing.assert_array_equal(state["blocks"], [0])
    assert np.count_nonzero(state["cells"]) == filter_.num_elements


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    filter_ = CountingFilter.sliding(thresholds(3), 1000, 7)
    admit(filter_, [1, 1])
    good = filter_.state()
    with pytest.raises(
        InvalidSetting, match=r"saved filter has layout .* this one CellLayout\(ring=7"
    ):
        filter_.restore(CountingFilter.sliding(thresholds(3), 1000, 8).state())
    with pytest.raises(InvalidSetting, match="layout"):
        filter_.restore(CountingFilter.plain(thresholds(3), 1000).state())
    for name, bad in (
        ("counters", np.array([7, 0, 0])),
        ("counters", np.array([0, 0])),
        ("elements", np.zeros(7, np.int64)),
        ("cells", good["cells"][:, 1:]),
        ("cells", good["cells"].astype(np.int64)),
    ):
        with pytest.raises(CheckpointDamaged, match="contradicts itself"):
            filter_.restore(good | {name: bad})
    assert filter_.counts_of(seen(1)) == [2]


@pytest.mark.golden(
    "ProbabilisticFilterTest.UnequalProbability", "ProbabilisticFilterTest.ShouldBeFiltered"
)
@pytest.mark.parametrize("count", [1, 2])
def test_unequal_probability_admits_one_sighting_in_seven(count):
    filter_ = ProbabilisticFilter(thresholds(7), seed=1)
    admitted = sum(admit(filter_, np.arange(10000), np.full(10000, count)))
    assert abs(admitted - count * 10000 / 7) < 100


@pytest.mark.golden("ProbabilisticFilterTest.EqualProbability")
@pytest.mark.parametrize(("count", "tolerance"), [(1, 500), (2, 1000)])
def test_equal_probability_draws_once_for_each_sighting(count, tolerance):
    filter_ = ProbabilisticFilter(thresholds(7), is_equal=True, seed=2)
    admitted = sum(admit(filter_, np.arange(10000), np.full(10000, count)))
    assert abs(admitted - 10000 * (1 - (1 - 0.348164) ** count)) < tolerance


@pytest.mark.parametrize(("threshold", "p"), [(1, 0.95), (7, 0.348164), (15, 0.181036)])
def test_equal_probability_admits_95_percent_within_the_threshold(threshold, p):
    """5 standard deviations wide over 200000 ids, at one sighting and at T of them in one call."""
    filter_ = ProbabilisticFilter(thresholds(threshold), is_equal=True, seed=3)
    keys = np.arange(200000)
    for count, expected in ((1, p), (threshold, 0.95)):
        share = np.mean(admit(filter_, keys, np.full(len(keys), count)))
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / len(keys))


@pytest.mark.parametrize("is_equal", [False, True])
def test_probabilistic_filters_admit_threshold_zero_always_and_remember_nothing(is_equal):
    filter_ = ProbabilisticFilter(thresholds(0, s1=7), is_equal, seed=4)
    assert all(admit(filter_, np.arange(1000)))
    assert filter_.state() == {}
    filter_.restore({})
    if not is_equal:
        assert all(admit(filter_, (1 << 48) + np.arange(1000), np.full(1000, 2**40)))


def test_probabilistic_draws_follow_the_seed():
    first, second, other = (ProbabilisticFilter(thresholds(3), seed=seed) for seed in (5, 5, 6))
    keys = np.arange(100)
    answers = admit(first, keys)
    assert answers == admit(second, keys)
    assert answers != admit(other, keys)
    assert answers != admit(first, keys)


def test_the_settings_choose_the_filter_and_reach_it():
    equal = AdmissionConfig(
        kind=FilterKind.PROBABILISTIC, default_threshold=7, equal_probability=True
    )
    share = np.mean(admit(admission_filter(equal), np.arange(20000)))
    assert abs(share - 0.348) < 0.02
    assert isinstance(
        admission_filter(AdmissionConfig(default_threshold=1, capacity=300)), CountingFilter
    )


def test_a_restored_filter_forgets_what_it_had_counted():
    filter_ = CountingFilter.sliding(thresholds(3), 1000, 7)
    empty, ids = filter_.state(), np.arange(1, 500) << 17
    admit(filter_, ids)
    filter_.restore(empty)
    assert not filter_.counts_of(ids).any()
    assert (filter_.num_elements, filter_.num_failures) == (0, 0)


def test_a_ring_remembers_at_least_three_hundred_ids():
    assert (
        CountingFilter.sliding(thresholds(1), 1, 7).layout
        == CountingFilter.sliding(thresholds(1), 300, 7).layout
    )


def test_split_num_below_five_means_five_everywhere():
    filter_ = CountingFilter.sliding(thresholds(1), 1000, 2)
    assert filter_.state()["elements"].shape == (5,)


@pytest.mark.parametrize(
    "build", [*FILTERS.values(), lambda _: NoFilter(), lambda _: ProbabilisticFilter(thresholds(1))]
)
def test_bad_questions_are_refused(build):
    filter_ = build(100)
    ones = np.ones(3, np.int64)
    with pytest.raises(MalformedArray, match="int32"):
        filter_.admit(np.zeros(3, np.int32), ones)
    with pytest.raises(MalformedArray, match="counts are float64"):
        filter_.admit(ones, np.ones(3))
    with pytest.raises(ShapeMismatch, match="3 ids with 2 counts"):
        filter_.admit(ones, ones[:2])
    with pytest.raises(InvalidRequest, match="count 0"):
        filter_.admit(ones, np.array([1, 0, 1]))
    assert admit(filter_, []) == []


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: thresholds(-1), "default_threshold is -1"),
        (lambda: thresholds(0, s32768=1), "slot 32768 is outside"),
        (lambda: thresholds(0, s3=2**31), "the threshold of slot 3 is 2147483648"),
        (
            lambda: CountingFilter.sliding(thresholds(16), 100, cell_bytes=2),
            "threshold 16 is above 15",
        ),
        (lambda: CountingFilter.sliding(thresholds(65536), 100), "threshold 65536 is above 65535"),
        (lambda: CountingFilter.plain(thresholds(1), 0), "capacity 0"),
        (lambda: CountingFilter.plain(thresholds(1), 10, fill_rate=0.5), r"fill_rate 0\.5"),
        (lambda: CountingFilter.plain(thresholds(1), 10, cell_bytes=3), "cells of 3 bytes"),
        (lambda: CountingFilter.sliding(thresholds(1), 100, 0), "split_num 0"),
        (lambda: CountingFilter.sliding(thresholds(1), 300, 1000), "leaves a capacity of 0"),
        (lambda: CountingFilter.sliding(thresholds(1), 2**36), "too many"),
        (lambda: ProbabilisticFilter(thresholds(1), seed=-1), "seed -1"),
        (
            lambda: admission_filter(AdmissionConfig(kind="bloom", default_threshold=1)),
            "unknown kind 'bloom'",
        ),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(InvalidSetting, match=message):
        build()
