import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.errors import InvalidRequest
from megalith.wire import routing

MASK = 2**64 - 1


def mix64_by_hand(key):
    """The splitmix64 finalizer on Python integers."""
    x = key & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_mix64_is_the_splitmix64_finalizer(keys):
    assert routing.mix64(np.array(keys, np.int64)).tolist() == [mix64_by_hand(key) for key in keys]


def test_mix64_leaves_its_input_alone():
    keys = np.arange(5)
    routing.mix64(keys)
    assert keys.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("step", [1, 2, 1024, 1 << 20, 1 << 48])
def test_patterned_ids_spread_evenly_over_servers(step):
    owners = routing.Routing(1, ("a", "b", "c"), routing.even_owners(3)).owner_of(
        np.arange(30_000) * step
    )
    assert np.bincount(owners, minlength=3).min() > 9_500


@pytest.mark.parametrize("num_ps", [1, 2, 3, 7, 1024])
def test_even_owners_use_every_server_and_differ_by_one_bucket_at_most(num_ps):
    counts = np.bincount(routing.even_owners(num_ps), minlength=num_ps)
    assert counts.sum() == routing.NUM_BUCKETS
    assert counts.max() - counts.min() <= 1


def test_owners_survive_the_round_trip_and_wrong_lengths_are_refused():
    owners = routing.even_owners(5)
    data = routing.encode_owners(owners)
    np.testing.assert_array_equal(routing.decode_owners(data), owners)
    with pytest.raises(InvalidRequest, match="2047 bytes"):
        routing.decode_owners(data[:-1])


def test_variables_are_routed_like_ids():
    current = routing.Routing(1, ("a", "b"), routing.even_owners(2))
    key = np.array([routing.id_of_name("bias")])
    assert current.owner_of_name("bias") == current.owner_of(key)[0]
