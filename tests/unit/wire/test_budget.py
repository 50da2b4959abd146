import threading

import pytest

from megalith.errors import LimitExceeded, Overloaded
from megalith.wire.budget import ByteBudget


def test_who_would_exceed_the_budget_waits_until_bytes_are_given_back():
    budget, entered = ByteBudget(100), threading.Event()

    def second():
        with budget.holding(50, 10):
            entered.set()

    with budget.holding(60, 0):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(30)
    thread.join(30)
    assert budget.held_bytes == 0


def test_one_that_does_not_get_room_in_time_is_told():
    budget = ByteBudget(100)
    with (
        budget.holding(60, 0),
        pytest.raises(LimitExceeded, match="60 of 100 bytes"),
        budget.holding(50, 0.01),
    ):
        pass
    assert budget.held_bytes == 0


def test_more_than_the_whole_budget_is_let_through_alone():
    budget = ByteBudget(100)
    with budget.holding(1000, 0):
        assert budget.held_bytes == 1000
    with pytest.raises(ZeroDivisionError), budget.holding(10, 0):
        1 / 0  # noqa: B018
    assert budget.held_bytes == 0


def test_shares_that_grow_into_each_other_do_not_wait_for_each_other_for_ever():
    budget = ByteBudget(100)
    with budget.share() as first, budget.share() as second:
        first.grow(50, 0)
        second.grow(50, 0)
        with pytest.raises(Overloaded, match="100 of 100 bytes"):
            second.grow(50, 0.01)
        first.grow(50, 0)  # the oldest goes on, beyond the limit
        assert budget.held_bytes == 150
    assert budget.held_bytes == 0


def test_a_share_that_grows_waits_for_requests_that_are_complete():
    budget = ByteBudget(100)
    with budget.share() as complete, budget.share() as growing:
        complete.grow(90, 0)
        complete.complete()
        growing.grow(10, 0)
        with pytest.raises(Overloaded):
            growing.grow(1, 0.01)
    assert budget.held_bytes == 0
