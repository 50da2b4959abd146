"""Seats of replicas: who may follow, who is remembered, and who is not any more."""

import pytest

from megalith.errors import IndexTaken, Overloaded
from megalith.ps.following.followers import Followers


class Follower:
    is_dismissed = False

    def dismiss(self):
        self.is_dismissed = True


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def followers(clock):
    return Followers(2, 600.0, clock)


def test_more_than_may_follow_are_refused_and_told_the_setting(followers):
    followers.enter("a", Follower())
    followers.enter("b", Follower())
    with pytest.raises(Overloaded, match="--max-replicas is 2"):
        followers.enter("c", Follower())
    assert followers.names == ["a", "b"]


def test_who_is_away_keeps_nobody_out(followers, clock, caplog):
    away = []
    for name in ("a", "b"):
        follower = Follower()
        seat = followers.enter(name, follower)
        clock.now_s += 1
        followers.leave(name, seat)
        away.append(follower)
    followers.enter("c", Follower())
    assert [each.is_dismissed for each in away] == [True, False]
    assert "not kept for a any more" in caplog.text
    followers.enter("d", Follower())
    assert away[1].is_dismissed
    with pytest.raises(Overloaded):
        followers.enter("e", Follower())


def test_a_newer_stream_takes_the_seat_and_the_older_one_is_told(followers):
    old = followers.enter("a", Follower())
    new = followers.enter("a", Follower())
    followers.check_held("a", new)
    with pytest.raises(IndexTaken, match="two replicas have one --index"):
        followers.check_held("a", old)
    followers.leave("a", old)
    assert followers.names == ["a"]


def test_one_that_stays_away_is_forgotten(followers, clock):
    follower = Follower()
    seat = followers.enter("a", follower)
    followers.leave("a", seat)
    clock.now_s = 600.0
    assert followers.is_anybody_there()
    clock.now_s = 600.1
    assert not followers.is_anybody_there()
    assert follower.is_dismissed
