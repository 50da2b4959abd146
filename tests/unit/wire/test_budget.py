import threading

import pytest

from megalith.wire.budget import ByteBudget
from megalith.wire.errors import LimitExceeded


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
    with budget.holding(60, 0), pytest.raises(LimitExceeded, match="60 of 100 bytes"), budget.holding(50, 0.01):
        pass
    assert budget.held_bytes == 0


def test_more_than_the_whole_budget_is_let_through_alone():
    budget = ByteBudget(100)
    with budget.holding(1000, 0):
        assert budget.held_bytes == 1000
    with pytest.raises(ZeroDivisionError), budget.holding(10, 0):
        1 / 0  # noqa: B018
    assert budget.held_bytes == 0
