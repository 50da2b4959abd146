import threading

import pytest

from megalith.client import BackgroundCalls, errors
from support.waiting import wait_until


class Sum:
    """Adds up what it is called with, each time as soon as it may."""

    def __init__(self):
        self.value = 0
        self.may_add = threading.Semaphore(0)

    def add(self, summand=1, *, times=1):
        assert self.may_add.acquire(timeout=30)
        self.value += summand * times


@pytest.mark.golden("G6")
@pytest.mark.parametrize("arguments", [(1,), ()])
def test_the_call_of_a_step_is_made_beside_the_next_step(arguments):
    total = Sum()
    with BackgroundCalls() as calls:
        assert calls.is_idle
        calls.make(total.add, *arguments)
        assert not calls.is_idle
        assert total.value == 0  # the first step does not wait for it
        total.may_add.release()
        calls.make(total.add, *arguments)
        assert total.value == 1  # the second one does
        total.may_add.release()
    assert total.value == 2  # at the end nothing is left


@pytest.mark.golden("G6")
def test_with_a_depth_of_0_a_call_is_made_at_once():
    total = Sum()
    total.may_add.release()
    calls = BackgroundCalls(depth=0)
    calls.make(total.add, 1)
    assert total.value == 1


def test_calls_are_made_in_order_with_their_arguments_and_drained():
    made = []
    with BackgroundCalls(depth=3) as calls:
        for number in range(100):
            calls.make(lambda a, b: made.append((a, b)), number, b=-number)
        calls.drain()
        assert made == [(number, -number) for number in range(100)]


def test_no_more_calls_than_the_depth_are_unfinished():
    total = Sum()
    calls = BackgroundCalls(depth=2)
    calls.make(total.add)
    calls.make(total.add)
    third = threading.Thread(target=calls.make, args=(total.add,))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    total.may_add.release(3)
    third.join(30)
    calls.close()
    assert total.value == 3


def fail(message):
    raise errors.BadData(message)


def test_an_error_is_raised_by_the_next_call_and_the_others_are_made(caplog):
    made = []
    all_are_waiting = threading.Event()
    calls = BackgroundCalls(depth=4)
    calls.make(all_are_waiting.wait)
    calls.make(fail, "first")
    calls.make(fail, "second")
    calls.make(made.append, 3)
    all_are_waiting.set()
    wait_until(lambda: made == [3])
    with pytest.raises(errors.BadData, match="first"):
        calls.make(made.append, 4)
    calls.drain()  # it was raised once
    calls.close()
    assert made == [3]  # the call that raised it was not made
    assert [record.message for record in caplog.records] == [
        "another call in the background failed: second"
    ]


def test_close_raises_the_error_of_the_last_call_and_ends_the_thread():
    calls = BackgroundCalls()
    calls.make(fail, "the disk is full")
    with pytest.raises(errors.BadData, match="disk is full"):
        calls.close()
    assert "background-calls" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(errors.InvalidRequest, match="closed"):
        calls.make(print)


def test_the_error_of_a_block_is_not_hidden_by_one_of_its_calls(caplog):
    def leave():
        with BackgroundCalls() as calls:
            calls.make(fail, "the disk is full")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert "the disk is full" in caplog.text


@pytest.mark.parametrize("depth", [-1, 1.5, None])
def test_a_wrong_depth_is_refused(depth):
    with pytest.raises(errors.InvalidRequest, match="depth"):
        BackgroundCalls(depth=depth)
