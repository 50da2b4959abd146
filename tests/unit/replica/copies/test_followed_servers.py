"""Which ps are followed, and what is counted of them."""

import numpy as np
import pytest

from megalith.replica.copies.followed_servers import FollowedServers, HeldShare
from megalith.replica.copies.model import ServedModel
from megalith.wire.routing import Routing, share_of_buckets


def map_of(num_ps, run_id):
    """Nobody is at any of these addresses."""
    addresses = tuple(f"127.0.0.1:{1 + index}" for index in range(num_ps))
    return Routing(1, addresses, np.zeros(1024, np.uint16), run_id)


@pytest.fixture
def servers():
    share = HeldShare(0, 0, share_of_buckets(0, 0))
    servers = FollowedServers("replica-0", share, lambda version: None, 1 << 20)
    yield servers
    servers.stop()


def test_what_was_counted_never_goes_back(servers):
    model = ServedModel(0)
    servers.follow(map_of(3, "first"), model)
    for following in servers.all:
        following.copy.counts.rows_applied += 7

    servers.follow(map_of(2, "second"), model)
    assert [each.rows_applied for each in servers.counts] == [7, 7, 7]
    servers.stop()
    servers.forget()  # it was rolled back
    assert [each.rows_applied for each in servers.counts] == [7, 7, 7]
    servers.follow(map_of(2, "second"), ServedModel(0))
    assert [each.copy.counts.rows_applied for each in servers.all] == [7, 7]
    servers.all[1].copy.counts.rows_applied += 1
    assert [each.rows_applied for each in servers.counts] == [7, 8, 7]
