import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.tasks.input.numbering import Numbering


def rows_of(numbering, number):
    found = []
    for stretch in numbering.batch(number):
        found += [(stretch.block, row) for row in range(stretch.start, stretch.stop)]
    return found


@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    batch_size=st.integers(1, 30),
    num_tracks=st.integers(1, 5),
    seed=st.none() | st.integers(0, 9),
)
def test_every_row_is_in_one_batch_of_each_epoch(rows, batch_size, num_tracks, seed):
    numbering = Numbering(rows, batch_size, num_tracks, seed)
    all_rows = sorted((block, row) for block, count in enumerate(rows) for row in range(count))
    count = numbering.batches_per_epoch
    for epoch in range(2):
        batches = [rows_of(numbering, epoch * count + number) for number in range(count)]
        assert sorted(itertools.chain(*batches)) == all_rows
        assert all(0 < len(batch) <= batch_size for batch in batches)


def test_tracks_of_different_lengths_are_numbered_as_the_module_says():
    numbering = Numbering([30, 10], batch_size=10, num_tracks=2)
    tracks = [numbering.batch(number)[0].track for number in range(4)]
    assert tracks == [0, 1, 0, 0]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_a_worker_reads_blocks_of_its_own(num_workers):
    """Blocks of different sizes; until a track ends, no block is read by two workers."""
    rng = np.random.default_rng(1)
    numbering = Numbering(rng.integers(900, 1100, 30).tolist(), 64, num_workers, 5)
    readers = {}
    for number in range(numbering.batches_per_epoch - 20):
        for stretch in numbering.batch(number):
            readers.setdefault(stretch.block, set()).add(number % num_workers)
    assert all(len(workers) == 1 for workers in readers.values())


def test_more_workers_than_blocks_train_all_rows_all_the_same():
    numbering = Numbering([100], batch_size=10, num_tracks=4)
    assert numbering.batches_per_epoch == 10
    assert sorted(itertools.chain(*(rows_of(numbering, n) for n in range(10)))) == [
        (0, r) for r in range(100)
    ]


def test_a_seed_orders_blocks_anew_in_each_epoch_and_always_in_the_same_way():
    numbering = Numbering([10] * 20, 10, 1, shuffle_seed=3)
    epochs = [[numbering.batch(20 * e + n)[0].block for n in range(20)] for e in range(2)]
    assert epochs[0] != epochs[1]
    again = Numbering([10] * 20, 10, 1, shuffle_seed=3)
    assert [again.batch(n)[0].block for n in range(20)] == epochs[0]
