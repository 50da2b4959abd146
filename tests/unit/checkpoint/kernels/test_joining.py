"""Rows out of columns, compared with NumPy."""

import numpy as np
import pytest

from megalith.checkpoint.kernels.joining import join
from megalith.engine.table.checks import frozen
from megalith.wire import routing


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
@pytest.mark.parametrize("widths", [(1, 0), (3, 2), (16, 16)])
def test_the_rows_of_wanted_buckets_come_whole_and_in_their_order(count, widths):
    chance = np.random.default_rng(count)
    ids = chance.integers(-(2**63), 2**63 - 1, count)
    embeddings = chance.standard_normal((count, widths[0])).astype(np.float32)
    states = chance.standard_normal((count, widths[1])).astype(np.float32)
    times = np.arange(count)
    wanted = chance.random(routing.NUM_BUCKETS) < 0.5
    out_ids = np.empty(count, np.int64)
    out_rows = np.empty((count, sum(widths)), np.float32)
    out_times = np.empty(count, np.int64)
    found = join(
        frozen(ids),
        frozen(embeddings.reshape(-1)),
        frozen(states.reshape(-1)),
        times,
        wanted,
        out_ids,
        out_rows.reshape(-1),
        out_times,
    )

    is_wanted = wanted[routing.buckets_of(ids)]
    rows = np.concatenate([embeddings, states], axis=1)
    assert found == np.count_nonzero(is_wanted)
    np.testing.assert_array_equal(out_ids[:found], ids[is_wanted])
    np.testing.assert_array_equal(out_rows[:found], rows[is_wanted])
    np.testing.assert_array_equal(out_times[:found], times[is_wanted])
