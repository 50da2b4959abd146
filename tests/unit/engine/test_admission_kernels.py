"""The kernels of the admission filters against naive twins, with cells so few that ids collide all
the time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.engine.admission.counting_filter import CountingFilter
from megalith.engine.kernels import admission
from megalith.engine.kernels.admission import CellLayout
from megalith.schema.admission import AdmissionConfig
from support.twins.admission import RingFilter, count_in, is_admitted_by_chance, search

THRESHOLDS = AdmissionConfig(default_threshold=2, threshold_by_slot={1: 0, 2: 15}).thresholds()
ids = st.integers(0, 400).map(lambda number: (number % 3 << 48) + (number << 15))
sightings = st.lists(st.tuples(ids, st.integers(1, 20)), max_size=150)
BUILDS = {
    "plain": lambda cell_bytes: CountingFilter.plain(THRESHOLDS, 40, cell_bytes=cell_bytes),
    "ring": lambda cell_bytes: CountingFilter.sliding(
        THRESHOLDS, 300, 60, cell_bytes
    ),  # blocks that 4 ids fill
}


@given(sightings=sightings, cell_bytes=st.sampled_from([1, 4]))
@settings(max_examples=60)
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS.keys())
def test_admitting_and_reading_do_what_their_twin_does_cell_by_cell(build, sightings, cell_bytes):
    filter_ = build(cell_bytes)
    twin = RingFilter(filter_.layout)
    keys = np.array([key for key, _ in sightings], np.int64)
    counts = np.array([count for _, count in sightings], np.int64)
    thresholds = THRESHOLDS[keys >> 48]
    expected = [
        bool(threshold == 0 or twin.add(key, count) >= threshold)
        for (key, count), threshold in zip(sightings, thresholds, strict=True)
    ]
    assert filter_.admit(keys, counts).tolist() == expected
    assert filter_.counts_of(keys).tolist() == [twin.get(int(key)) for key in keys]
    state = filter_.state()
    assert state["counters"].tolist() == [twin.head, twin.increment, twin.failures]
    assert state["elements"].tolist() == twin.elements
    assert state["cells"].tolist() == [twin.blocks[block] for block in state["blocks"]]


@given(
    sightings=sightings,
    is_equal=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
    first=st.integers(0, 2**40),
)
@settings(max_examples=60)
def test_chance_does_what_its_twin_does(sightings, is_equal, seed, first):
    keys = np.array([key for key, _ in sightings], np.int64)
    counts = np.array([count for _, count in sightings], np.int64)
    out = np.empty(keys.size, np.bool_)
    admission.admit_by_chance(keys, counts, THRESHOLDS, is_equal, seed, first, out)
    thresholds = THRESHOLDS[keys >> 48]
    assert out.tolist() == [
        is_admitted_by_chance(int(threshold), count, is_equal, seed, first + i)
        for i, (threshold, (_, count)) in enumerate(zip(thresholds, sightings, strict=True))
    ]


LAYOUT = CellLayout(
    ring=1,
    block_capacity=20,
    total_size=20,
    num_cells=26,
    max_steps=6,
    count_bits=4,
    signature_bits=4,
    forward=1,
    backward=0,
)
searches = st.lists(
    st.tuples(st.integers(0, 19), st.integers(0, 5), st.integers(1, 15)), max_size=40
)


def block_of(searches):
    """The cells after these ids (start, signature, count) were counted, as `RingFilter` does it."""
    cells = np.zeros(LAYOUT.num_cells, np.uint8)
    for start, signature, count in searches:
        run = range(start, start + LAYOUT.max_steps)
        at = next((at for at in run if cells[at] == 0 or cells[at] >> 4 == signature), None)
        if at is not None:
            cells[at] = (signature << 4) + min(15, (int(cells[at]) & 15) + count)
    return cells


@given(source=searches, target=searches)
@settings(max_examples=150)
def test_merging_two_blocks_lowers_the_count_of_no_search(source, target):
    """Every search that found its id in either block reads that count or more, and nothing is made
    up."""
    source, target = block_of(source), block_of(target)
    merged = target.copy()
    filled = admission.merge_block(source, merged, LAYOUT)
    for start in range(LAYOUT.total_size):
        for signature in range(16):
            found = [c for c in (source, target) if search(c, start, signature, LAYOUT) is not None]
            before = max((count_in(cells, start, signature, LAYOUT) for cells in found), default=0)
            assert count_in(merged, start, signature, LAYOUT) >= before
    assert filled == np.count_nonzero(merged) - np.count_nonzero(target)
    assert {*merged.tolist()} <= {0, *source.tolist(), *target.tolist()}
    kept = target != 0
    np.testing.assert_array_equal(merged[kept] >> 4, target[kept] >> 4)
    assert (merged[kept] >= target[kept]).all()


@given(cells=searches)
def test_merging_with_nothing_keeps_every_cell_in_its_place(cells):
    """Neighbours of equal signature may get each other's count: which of them a search stops at is
    not written down."""
    cells = block_of(cells)
    merged = np.zeros_like(cells)
    assert admission.merge_block(cells, merged, LAYOUT) == np.count_nonzero(cells)
    np.testing.assert_array_equal(merged >> 4, cells >> 4)
    assert (merged >= cells).all()
    before = merged.copy()
    assert admission.merge_block(np.zeros_like(cells), merged, LAYOUT) == 0
    np.testing.assert_array_equal(merged, before)
