"""Whom a ps lets follow, and when it gives a version."""

import numpy as np
import pytest

from megalith.errors import NotReady
from megalith.protos import replication_pb2 as pb
from megalith.ps.following.servicer import ReplicationServicer
from megalith.ps.store.known_saves import KnownSaves
from megalith.ps.store.store import Store
from megalith.wire.routing import Routing, even_owners

MAP = Routing(1, ("a:1", "b:1"), even_owners(2), "run")


class Seat:
    """A lease that is held or not, as the test says."""

    is_held = True
    is_controller_silent = False


@pytest.fixture
def lease():
    return Seat()


@pytest.fixture
def store(lease):
    store = Store(0, lease=lease)
    store.route(MAP, is_initialized=True)
    return store


@pytest.fixture
def servicer(store):
    servicer = ReplicationServicer(0, store, KnownSaves(store, 600), 0.01, 0.0, 600, 4, 1 << 20)
    servicer.start()
    yield servicer
    servicer.stop()


def follow(servicer, is_controller_away=False, words=()):
    """The messages of a stream; `words` say of each version whether the controller is away."""

    def requests():
        begin = pb.FollowBegin(run_id="run", replica="r", is_controller_away=is_controller_away)
        yield pb.FollowRequest(begin=begin)
        for number, is_away in enumerate(words, 1):
            acknowledged = pb.AcknowledgeVersion(number=number, is_controller_away=is_away)
            yield pb.FollowRequest(acknowledged=acknowledged)

    return servicer.Follow(requests(), None)


def version(stream):
    """The number of the next version."""
    return next(each.version.number for each in stream if each.HasField("version"))


def test_a_ps_says_which_buckets_the_map_gives_it(servicer):
    hello = next(follow(servicer)).hello
    owned = np.frombuffer(hello.buckets, np.uint8)
    assert owned.tolist() == (MAP.owners == 0).astype(int).tolist()


def test_a_ps_that_has_no_map_now_is_not_followed(store, servicer):
    """It knows its run, and that every bucket may be its own: the end of a snapshot would drop
    the rows of all other ps."""
    store.route(None, is_initialized=False)
    with pytest.raises(NotReady, match="it is not known which rows are its own"):
        next(follow(servicer))

    store.route(MAP, is_initialized=True)
    assert next(follow(servicer)).HasField("hello")


def test_a_ps_that_may_have_been_replaced_gives_no_version(lease, servicer):
    """Somebody else may have newer rows, and a version says that there were none."""
    stream = follow(servicer, words=[False])
    assert version(stream) == 1
    lease.is_held = False
    with pytest.raises(NotReady, match="another process may have its seat"):
        version(stream)


def test_while_nobody_hears_a_controller_versions_go_on(lease, servicer):
    lease.is_held = False
    lease.is_controller_silent = True
    stream = follow(servicer, is_controller_away=True, words=[True, False])
    assert version(stream) == 1
    assert version(stream) == 2
    with pytest.raises(NotReady):  # the replica hears it again: there may be another map
        version(stream)
