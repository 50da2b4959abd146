"""Batches that a thread draws from an input: order, cursors, ends, errors and inputs that wait."""

import threading

import numpy as np
import pytest

from megalith.errors import InvalidRequest, InvalidSetting, Unavailable
from megalith.worker.batches import Batches
from megalith.worker.input import Input, InputBatch, Mode
from megalith.worker.task import open_input


class Lines(Input):
    """Numbers up to an end; the cursor is the next one. Fails once before each of `failing`."""

    def __init__(self, end=5, failing=()):
        self.end = end
        self.failing = set(failing)
        self.opened_at = []
        self.is_closed = False

    def batches(self, cursor):
        self.opened_at.append(cursor)
        for number in range(int(cursor or b"0"), self.end):
            if number in self.failing:
                self.failing.discard(number)
                raise Unavailable(f"no line {number} now")
            yield InputBatch(number, b"%d" % (number + 1), 1000 + number, f"line {number}")

    def close(self):
        self.is_closed = True


class Task:
    def ids(self, batch):
        return {"t": np.array([batch])}


@pytest.fixture
def open_batches():
    opened = []

    def open_(input_, cursor=b"", position=0, ahead=2):
        opened.append(Batches(Task(), input_, cursor, position, ahead, lambda: 12))
        return opened[-1]

    yield open_
    for batches in opened:
        batches.close()


def test_batches_have_the_cursor_after_them_their_time_and_their_place(open_batches):
    batches = open_batches(Lines(), b"2", position=7)
    assert [batches.get(position).batch for position in (7, 8, 9)] == [2, 3, 4]
    last = batches.get(9)
    assert (last.cursor, last.req_time_s, last.where) == (b"5", 1004, "line 4")
    assert not batches.has(10)


def test_a_batch_can_be_had_again_until_it_is_forgotten(open_batches):
    batches = open_batches(Lines())
    first = batches.get(0)
    batches.get(1)
    assert batches.get(0) is first
    batches.forget_before(1)
    with pytest.raises(InvalidRequest, match="no batch at position 0"):
        batches.get(0)
    assert batches.get(1).batch == 1


@pytest.mark.parametrize("ahead", [0, 3])
def test_an_error_is_raised_where_it_happened_and_the_input_goes_on_behind_the_last_batch(
    open_batches, ahead
):
    lines = Lines(failing=[2])
    batches = open_batches(lines, ahead=ahead)
    assert [batches.get(0).batch, batches.get(1).batch] == [0, 1]
    assert batches.has(2)
    with pytest.raises(Unavailable, match="no line 2 now") as raised:
        batches.get(2)
    assert raised.value.__notes__ == ["step 12"]
    assert [batches.get(position).batch for position in (2, 3, 4)] == [2, 3, 4]
    assert lines.opened_at == [b"", b"2"]


def test_no_more_is_drawn_than_was_asked_for_and_some_ahead(open_batches):
    drawn = []

    class Watched(Lines):
        def batches(self, cursor):
            for each in super().batches(cursor):
                drawn.append(each.batch)
                yield each

    batches = open_batches(Watched(end=100), ahead=2)
    batches.get(0)
    assert batches.is_drawn(2, 10.0)  # asks for two more
    batches.wait_for(4, 10.0)
    assert max(drawn) <= 6


def test_an_input_that_waits_for_data_does_not_hold_up_whoever_asks(open_batches):
    data_came = threading.Event()

    class Stream(Lines):
        def batches(self, cursor):
            data_came.wait()
            yield from super().batches(cursor)

    batches = open_batches(Stream())
    assert not batches.wait_for(0, 0.01)
    assert not batches.is_drawn(0, 0.01)
    data_came.set()
    assert batches.get(0).batch == 0


def test_closing_closes_the_input(open_batches):
    lines = Lines()
    batches = open_batches(lines)
    batches.get(0)
    batches.close()
    assert lines.is_closed


def test_with_another_number_of_workers_an_input_that_cannot_divide_the_rest_says_so():
    saved = (b"3", b"", b"4")
    assert [Lines().resumed(saved, index, 3) for index in range(3)] == [b"3", b"", b"4"]
    with pytest.raises(InvalidRequest, match=r"saved by 3 workers.*start 3 workers, or"):
        Lines().resumed(saved, 0, 2)


def test_a_task_without_input_is_refused():
    with pytest.raises(InvalidSetting, match=r"Task has no input: it needs a method input"):
        open_input(Task(), Mode.TRAIN, 0, 1)
