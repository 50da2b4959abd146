"""The clock of versions goes on whatever happens, and never says more than it did."""

import threading
import time

import pytest

from megalith.ps.following.sealing import SealingClock
from support.waiting import wait_until


class Table:
    def __init__(self):
        self.changes = self
        self.is_broken = False
        self.count = 0

    def seal(self):
        if self.is_broken:
            raise RuntimeError("broken on purpose")
        self.count += 1


@pytest.fixture
def table():
    return Table()


def test_a_sealing_that_fails_is_no_version_and_the_next_one_is(table, caplog):
    clock = SealingClock(lambda: [table], lambda: True, 0.01)
    clock.start()
    try:
        wait_until(lambda: clock.count > 0)
        table.is_broken = True
        wait_until(lambda: "sealing failed" in caplog.text)
        before = clock.count
        wait_until(lambda: caplog.text.count("sealing failed") > 2)
        assert clock.count == before
        table.is_broken = False
        wait_until(lambda: clock.count > before)
    finally:
        clock.stop()


def test_it_outlives_an_error_of_those_who_say_whether_it_is_needed(table, caplog):
    errors = iter([RuntimeError("broken on purpose")])

    def is_needed():
        for error in errors:
            raise error
        return True

    clock = SealingClock(lambda: [table], is_needed, 0.01)
    clock.start()
    try:
        wait_until(lambda: table.count > 0)
    finally:
        clock.stop()
    assert "sealing failed" in caplog.text


def test_nobody_there_costs_nothing_and_a_wake_begins(table):
    needed = threading.Event()
    clock = SealingClock(lambda: [table], needed.is_set, 0.01)
    clock.start()
    try:
        assert table.count == 0
        needed.set()
        clock.wake()
        asked_s = time.monotonic()
        count, began_s = clock.wait_after(clock.count)
        assert count > 0
        assert began_s >= asked_s - 0.05
    finally:
        clock.stop()


def test_a_stop_ends_waits(table):
    clock = SealingClock(lambda: [table], lambda: False, 60.0)
    clock.start()
    waiting = threading.Thread(target=clock.wait_after, args=(0,))
    waiting.start()
    clock.stop()
    waiting.join(10)
    assert not waiting.is_alive()
