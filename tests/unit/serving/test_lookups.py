"""The way to a replica: over its bulk lane, and without one."""

import pytest

from megalith.errors import PeerUnreachable
from megalith.protos import replica_pb2 as pb
from megalith.serving._lookups import LookupLink
from megalith.wire.lane import LaneClosed

CLOSED = b"of a process that is gone"


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


class Replica:
    """Says where its lane is, and how often it was asked."""

    def __init__(self, terms):
        self.terms = terms
        self.asked = 0

    def OpenLane(self, request, timeout):
        self.asked += 1
        return self.terms


class Call:
    """A call that is answered by the way that it went."""

    head_bytes = 0

    def message(self):
        return None

    def take(self, reply):
        return reply

    def finish(self, deadline):
        return "lane"


class Lane:
    """One of a process that is gone takes no connections."""

    tried = 0

    def __init__(self, address, terms, peer):
        self.token = terms.lane_token
        self.is_closed = False

    def start(self, call, deadline):
        Lane.tried += 1
        if self.token == CLOSED:
            raise LaneClosed("no connection")
        return call

    def close(self):
        self.is_closed = True


@pytest.fixture
def clock():
    return Clock()


def terms(token):
    return pb.OpenLaneResponse(lane_port=1, lane_token=token, max_message_bytes=9)


def way(link):
    return link.ask(Call(), lambda message, timeout: "unary", 10)


def test_the_lane_of_the_next_process_at_an_address_is_found(clock):
    replica = Replica(terms(CLOSED))
    link = LookupLink("a:1", replica, Lane, clock)
    assert way(link) == "unary"

    replica.terms = terms(b"of the next one")
    assert way(link) == "unary"
    assert replica.asked == 1
    clock.now_s += 5
    assert way(link) == "lane"
    clock.now_s += 5
    assert way(link) == "lane"
    assert replica.asked == 2


def test_a_replica_that_had_no_lane_is_asked_for_one_again(clock):
    replica = Replica(pb.OpenLaneResponse())
    link = LookupLink("a:1", replica, Lane, clock)
    assert [way(link) for _ in range(3)] == ["unary"] * 3
    assert replica.asked == 1

    replica.terms = terms(b"of the next process")
    clock.now_s += 5
    assert way(link) == "lane"


def test_a_lane_that_takes_no_connections_is_tried_once(clock, monkeypatch):
    monkeypatch.setattr(Lane, "tried", 0)
    replica = Replica(terms(CLOSED))
    link = LookupLink("a:1", replica, Lane, clock)
    for _ in range(4):
        assert way(link) == "unary"
        clock.now_s += 5
    assert replica.asked == 4
    assert Lane.tried == 1


def test_a_replica_that_was_not_reached_is_asked_for_its_lane_at_once(clock):
    replica = Replica(terms(CLOSED))
    link = LookupLink("a:1", replica, Lane, clock)

    def unreachable(message, timeout):
        raise PeerUnreachable("nobody is there")

    with pytest.raises(PeerUnreachable):
        link.ask(Call(), unreachable, 10)
    replica.terms = terms(b"")
    assert way(link) == "lane"


def test_a_link_that_was_closed_asks_for_no_lane(clock):
    replica = Replica(terms(b"token"))
    link = LookupLink("a:1", replica, Lane, clock)
    link.close()
    assert way(link) == "unary"
    assert replica.asked == 0
