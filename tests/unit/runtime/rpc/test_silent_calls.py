"""Which calls that wait for their message are given up while others wait for a thread."""

import threading
from types import SimpleNamespace

import pytest

from megalith.runtime.rpc.silent_calls import SilentCalls
from support.waiting import wait_until

LIMIT_S = 1000.0


class Call:
    """A call whose message does not come before somebody gives it up."""

    def __init__(self, silent):
        self.is_given_up = threading.Event()
        self._silent = silent
        threading.Thread(target=self._wait, daemon=True).start()

    def cancel(self):
        self.is_given_up.set()

    def peer(self):
        return "a peer"

    def __iter__(self):
        return self

    def __next__(self):
        self.is_given_up.wait(30)
        raise StopIteration

    def _wait(self):
        try:
            self._silent.next_message(self, self, LIMIT_S)
        except StopIteration:
            return


@pytest.fixture
def pool():
    return SimpleNamespace(size=8, num_waiting=0)


@pytest.fixture
def silent(pool):
    silent = SilentCalls(pool, LIMIT_S, patience_s=0.0, look_s=0.01)
    silent.start()
    yield silent
    silent.stop()


def wait_for(silent, number):
    calls = []
    for count in range(1, number + 1):
        calls.append(Call(silent))
        wait_until(lambda count=count: len(silent._silences) == count)
    return calls


def test_a_message_that_takes_long_comes_through_while_others_keep_the_threads_busy(silent, pool):
    calls = wait_for(silent, 4)  # half of the threads
    pool.num_waiting = 100
    threading.Event().wait(0.3)  # thirty looks
    assert not any(call.is_given_up.is_set() for call in calls)
    for call in calls:
        call.cancel()


def test_calls_that_hold_most_threads_give_way_the_oldest_first(silent, pool):
    calls = wait_for(silent, 8)
    pool.num_waiting = 100
    wait_until(lambda: all(call.is_given_up.is_set() for call in calls[:4]))
    threading.Event().wait(0.1)
    assert not any(call.is_given_up.is_set() for call in calls[4:])
    for call in calls:
        call.cancel()


def test_no_more_give_way_than_wait_for_a_thread(silent, pool):
    calls = wait_for(silent, 8)
    pool.num_waiting = 1
    wait_until(calls[0].is_given_up.is_set)
    pool.num_waiting = 0
    assert not calls[7].is_given_up.is_set()
    for call in calls:
        call.cancel()
