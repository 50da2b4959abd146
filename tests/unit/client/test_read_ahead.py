import gc
import threading

import numpy as np
import pytest

from megalith.client import Ragged, errors, read_ahead
from support.waiting import wait_until


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


class Counted:
    """The numbers from 0 to `count`; how many were read is known."""

    def __init__(self, count):
        self.count, self.num_read = count, 0

    def __iter__(self):
        for number in range(self.count):
            self.num_read += 1
            yield number


@pytest.mark.golden("G6")
def test_items_that_a_thread_prepares_are_used_in_order():
    halves = (value / 2 for value in (10.0, 20.0, 30.0))
    assert [value * 3 + 1 for value in read_ahead(halves)] == [16.0, 31.0, 46.0]

    pairs = [(5, 10.0), (10, 20.0), (15, 30.0)]
    assert list(read_ahead(iter(pairs), depth=2)) == pairs


@pytest.mark.golden("G6")
def test_an_item_of_any_structure_comes_out_as_it_went_in():
    item = {
        "dense": (np.float32(2.0), np.array([[3], [4]])),
        "ragged": [Ragged.of([[2], [-1, 3]]), Ragged.of([[1], []])],
        "text": "abc",
        "none": None,
    }
    (found,) = read_ahead([item])
    assert found is item
    assert found["ragged"][0].row_splits.tolist() == [0, 1, 3]
    assert (found["text"], found["none"]) == ("abc", None)


@pytest.mark.golden("G6")
@pytest.mark.parametrize("depth", [1, 4])
def test_no_more_items_are_read_ahead_than_the_depth(depth):
    source = Counted(20)
    items = read_ahead(source, depth=depth)
    found = []
    for number in items:
        found.append(number)
        expected = min(20, number + 1 + depth)
        wait_until(lambda: source.num_read == expected)  # noqa: B023
    assert found == list(range(20))
    assert source.num_read == 20  # each was read once


@pytest.mark.golden("G6")
def test_with_a_depth_of_0_each_item_is_read_when_it_is_asked_for():
    source = Counted(3)
    items = read_ahead(source, depth=0)
    assert source.num_read == 0
    assert next(items) == 0
    assert source.num_read == 1
    assert not threads()


def test_nothing_is_read_before_the_first_item_is_asked_for():
    source = Counted(3)
    items = read_ahead(source, depth=2)
    assert (source.num_read, threads()) == (0, [])
    assert list(items) == [0, 1, 2]


def test_an_error_of_the_input_is_raised_after_the_items_before_it():
    def broken():
        yield 1
        yield 2
        raise errors.BadData("day7.parquet: row group 3 is damaged")

    items = read_ahead(broken(), depth=5)
    assert (next(items), next(items)) == (1, 2)
    with pytest.raises(errors.BadData, match="row group 3 is damaged"):
        next(items)


def test_leaving_the_loop_ends_the_thread():
    source = Counted(1000)
    for number in read_ahead(source, depth=2):
        if number == 3:
            break
    gc.collect()
    wait_until(lambda: not threads())
    assert source.num_read <= 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(items=None), "expected something to iterate over"),
        (dict(items=[1], depth=-1), "depth -1 is negative"),
        (dict(items=[1], depth="2"), "'2' is not an integer"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(errors.InvalidRequest, match=message):
        read_ahead(**arguments)
