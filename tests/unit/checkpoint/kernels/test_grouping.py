"""Rows by group of buckets, compared with NumPy's stable sort."""

import numpy as np
import pytest

from megalith.checkpoint.kernels.grouping import GroupColumns, collect
from megalith.wire import routing

GROUP = 32
NUM_GROUPS = routing.NUM_BUCKETS // GROUP


def columns_of(room, widths):
    firsts = np.cumsum([0, *widths[:-1]])
    return GroupColumns(
        np.zeros(NUM_GROUPS, np.int64),
        np.zeros(NUM_GROUPS * room, np.uint16),
        np.zeros(NUM_GROUPS * room, np.int64),
        np.zeros(NUM_GROUPS * room, np.uint32),
        np.zeros(NUM_GROUPS * room * sum(widths), np.float32),
        firsts.astype(np.int64),
        np.array(widths, np.int64),
    )


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
@pytest.mark.parametrize("widths", [[1], [3, 0, 2], [16, 16]])
def test_rows_come_behind_those_of_their_group_in_their_order(count, widths):
    width = sum(widths)
    chance = np.random.default_rng(count + width)
    ids = chance.integers(-(2**63), 2**63 - 1, count)
    ids[count // 2 :] = ids[: count - count // 2]  # some twice
    rows = chance.standard_normal((count, width)).astype(np.float32)
    times = np.arange(count)
    room = count + 1
    columns = columns_of(room, widths)
    has_rows = np.zeros(routing.NUM_BUCKETS, np.bool_)
    middle = count // 3
    for part in (slice(0, middle), slice(middle, count)):
        some = np.ascontiguousarray(rows[part]).reshape(-1)
        collect(ids[part], some, times[part], GROUP, has_rows, columns)

    buckets = routing.buckets_of(ids)
    assert set(np.flatnonzero(has_rows)) == set(buckets.tolist())
    for group in range(NUM_GROUPS):
        wanted = np.flatnonzero(buckets // GROUP == group)
        begin = group * room
        end = begin + wanted.size
        assert columns.counts[group] == wanted.size
        np.testing.assert_array_equal(columns.buckets[begin:end], buckets[wanted])
        np.testing.assert_array_equal(columns.ids[begin:end], ids[wanted])
        np.testing.assert_array_equal(columns.times[begin:end], times[wanted])
        for first, size in zip(columns.firsts, columns.widths, strict=True):
            at = begin * width + first * room
            found = columns.floats[at : at + wanted.size * size].reshape(wanted.size, size)
            np.testing.assert_array_equal(found, rows[wanted, first : first + size])
