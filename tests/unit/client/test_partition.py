import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.client._ids import Partition, checked_ids, checked_rows, warm_up
from megalith.errors import DtypeMismatch, NonFiniteValue, ShapeMismatch
from megalith.kernels.finite import is_finite
from megalith.wire import routing

ids_of_any_kind = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=60)


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    """Compiling is not part of an example's time."""
    warm_up()


def routing_of(num_ps):
    owners = routing.decode_owners(routing.encode_owners(routing.even_owners(num_ps)))
    return routing.Routing(1, ("a",) * num_ps, owners)


def first_appearances(ids):
    return list(dict.fromkeys(ids))


def twin(ids, num_ps):
    """keys, bounds and slots by NumPy and plain Python."""
    distinct = np.array(first_appearances(ids), np.int64)
    owners = routing_of(num_ps).owner_of(distinct)
    keys = distinct[np.argsort(owners, kind="stable")]
    bounds = np.searchsorted(np.sort(owners), np.arange(num_ps + 1))
    place = {key: i for i, key in enumerate(keys.tolist())}
    return keys, bounds, np.array([place[key] for key in ids], np.int32)


@given(ids_of_any_kind, st.integers(1, 5))
def test_a_partition_is_that_of_its_numpy_twin(ids, num_ps):
    partition = Partition.of(np.array(ids, np.int64), routing_of(num_ps))
    for mine, expected in zip(
        (partition.ids, partition.bounds, partition.slots), twin(ids, num_ps), strict=True
    ):
        np.testing.assert_array_equal(mine, expected)


@given(st.sets(st.integers(-(2**63), 2**63 - 1), max_size=60), st.integers(1, 5))
def test_ids_known_to_be_distinct_give_the_same_partition(ids, num_ps):
    array = np.array(list(ids), np.int64)
    searched, promised = (
        Partition.of(array, routing_of(num_ps), is_distinct=known) for known in (False, True)
    )
    for name in ("ids", "bounds", "slots"):
        np.testing.assert_array_equal(getattr(searched, name), getattr(promised, name))


@given(ids_of_any_kind, st.integers(1, 5))
def test_parts_are_the_ids_of_each_server_and_cover_all(ids, num_ps):
    partition = Partition.of(np.array(ids, np.int64), routing_of(num_ps))
    seen = []
    for index, part in partition.parts():
        keys = partition.ids[part]
        assert (routing_of(num_ps).owner_of(keys) == index).all()
        seen += keys.tolist()
    assert sorted(seen) == sorted(set(ids))


@given(ids_of_any_kind, st.integers(1, 40), st.randoms(use_true_random=False))
def test_gradients_of_equal_ids_are_summed_in_the_order_of_the_batch(ids, width, random):
    partition = Partition.of(np.array(ids, np.int64), routing_of(3))
    values = (
        np.random.default_rng(random.getrandbits(32))
        .standard_normal((len(ids), width))
        .astype(np.float32)
    )
    expected = np.zeros((partition.ids.size, width), np.float32)
    np.add.at(expected, partition.slots, values)
    np.testing.assert_array_equal(partition.summed(values), expected)


@given(ids_of_any_kind, st.integers(1, 40))
def test_rows_come_back_in_the_order_of_the_batch(ids, width):
    partition = Partition.of(np.array(ids, np.int64), routing_of(3))
    received = np.arange(partition.ids.size * width, dtype=np.float32).reshape(-1, width)
    np.testing.assert_array_equal(partition.spread(received), received[partition.slots])
    assert partition.ids[partition.slots].tolist() == ids


@given(st.lists(st.floats(width=32), max_size=40))
def test_finite_is_what_numpy_calls_finite(values):
    array = np.array(values, np.float32)
    assert is_finite(array) == np.isfinite(array).all()


def test_ids_that_are_not_integers_are_refused():
    for bad in ([1.5], [[1.5, 2]], ["a"], [True], None):
        with pytest.raises(DtypeMismatch, match=r"table t: ids are .*, expected a vector of int64"):
            checked_ids("t", bad)
    with pytest.raises(ShapeMismatch, match=r"table t: ids are int64 \[1, 2\]"):
        checked_ids("t", [[1, 2]])
    assert checked_ids("t", []).dtype == np.int64


def test_gradients_of_the_wrong_kind_are_refused():
    with pytest.raises(ShapeMismatch, match=r"expected float32 \[2, dim\]"):
        checked_rows("t", "gradients", np.zeros((3, 4), np.float32), 2)
    for dtype in (np.int64, np.bool_, np.complex64, object):
        with pytest.raises(DtypeMismatch, match=r"expected float32 \[2, dim\]"):
            checked_rows("t", "gradients", np.zeros((2, 4), dtype), 2)
    with pytest.raises(NonFiniteValue, match="nothing was sent"):
        checked_rows("t", "gradients", np.full((2, 4), np.nan, np.float32), 2)
    with pytest.raises(NonFiniteValue):
        checked_rows("t", "gradients", np.full((2, 4), 1e300), 2)  # no float32


def offsets_of(rows, dims):
    """For each row of ids, the float offsets of the uses of each distinct one.

    And the floats in all.
    """
    current = routing.Routing(1, ("a",), routing.even_owners(1))
    begin, offsets = 0, []
    for row, dim in zip(rows, dims, strict=True):
        partition = Partition.of(np.array(row, np.int64), current)
        slots = [np.flatnonzero(partition.slots == k) for k in range(partition.ids.size)]
        offsets.append([(begin + uses * dim).tolist() for uses in slots])
        begin += len(row) * dim
    return offsets, begin


@pytest.mark.golden("DistributionOps.unique_key_with_value_and_offset")
def test_the_floats_of_two_tables_lie_one_after_the_other():
    assert offsets_of(([0, 1, 0], [0]), (2, 3)) == ([[[0, 4], [2]], [[6]]], 9)


@pytest.mark.golden(
    "DistributionOpsTest.test_unique_key_with_value_and_offset_and_fill_with_offset_map"
)
def test_a_partition_expands_distinct_rows_and_sums_gradients_back():
    """A ragged row is a table here: its distinct ids, where their floats go, and the gradients
    back."""
    rows, dims = ([], [0, 1, 2, 1, 0], [0, 1, 0], []), (1, 2, 3, 4)
    current = routing.Routing(1, ("a",), routing.even_owners(1))
    partitions = [Partition.of(np.array(row, np.int64), current) for row in rows]
    assert [partition.ids.tolist() for partition in partitions] == [[], [0, 1, 2], [0, 1], []]

    assert offsets_of(rows, dims) == ([[], [[0, 8], [2, 6], [4]], [[10, 16], [13]], []], 19)

    values, grads, expanded, summed = np.arange(12), np.arange(19, dtype=np.float32), [], []
    for partition, dim in zip(partitions, dims, strict=True):
        distinct, values = (
            values[: partition.ids.size * dim].reshape(-1, dim),
            values[partition.ids.size * dim :],
        )
        expanded += distinct[partition.slots].reshape(-1).tolist()
        floats = partition.slots.size * dim
        if floats:
            summed += partition.summed(grads[:floats].reshape(-1, dim)).reshape(-1).tolist()
        grads = grads[floats:]
    assert expanded == [0, 1, 2, 3, 4, 5, 2, 3, 0, 1, 6, 7, 8, 9, 10, 11, 6, 7, 8]
    assert summed == [8, 10, 8, 10, 4, 5, 26, 28, 30, 13, 14, 15]


def test_importing_the_sdk_does_not_import_numba():
    program = "import sys, megalith.client; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_pulled_rows_behind_gradients_are_not_summed_but_the_first_of_an_id_stays():
    partition = Partition.of(
        np.array([4, 8, 4, 4]), routing.Routing(1, ("a",), routing.even_owners(1))
    )
    rows = np.array([[1, 10], [2, 20], [3, 30], [4, 40]], np.float32)
    assert partition.ids.tolist() == [4, 8]
    np.testing.assert_array_equal(partition.summed(rows, 1), [[8, 10], [2, 20]])
    np.testing.assert_array_equal(partition.summed(rows), [[8, 80], [2, 20]])


def test_ids_that_collide_in_the_routing_hash_are_partitioned_as_fast_as_others():
    """A search that runs through all ids before it takes a thousand times as long."""
    with np.errstate(
        over="ignore"
    ):  # the finalizer of splitmix64 backwards: the last 40 bits of its results are zeros
        x = np.arange(100_000, dtype=np.uint64) << np.uint64(40)
        x ^= (x >> np.uint64(31)) ^ (x >> np.uint64(62))
        x *= np.uint64(pow(0x94D049BB133111EB, -1, 1 << 64))
        x ^= (x >> np.uint64(27)) ^ (x >> np.uint64(54))
        x *= np.uint64(pow(0xBF58476D1CE4E5B9, -1, 1 << 64))
        x ^= (x >> np.uint64(30)) ^ (x >> np.uint64(60))
    collided, others = x.view(np.int64), np.random.default_rng(0).integers(0, 2**62, 100_000)
    one_server = routing.Routing(1, ("a",), routing.even_owners(1))

    def seconds(ids):
        best = np.inf
        for _ in range(3):
            start = time.perf_counter()
            assert Partition.of(ids, one_server).ids.size == 100_000
            best = min(best, time.perf_counter() - start)
        return best

    seconds(others)  # compiles
    assert seconds(collided) < 20 * seconds(others)
