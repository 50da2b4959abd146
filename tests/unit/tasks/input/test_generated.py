"""A Python iterable as input: its batches are counted."""

import itertools

import pytest

from megalith.errors import InvalidRequest
from megalith.tasks.api import GeneratedInput


def numbers(index=0, count=1, size=20):
    return GeneratedInput(lambda: range(size), index=index, count=count)


def read(input_, cursor=b""):
    return [batch.batch for batch in input_.batches(cursor)]


def test_workers_share_the_batches():
    assert read(numbers(1, 3)) == [1, 4, 7, 10, 13, 16, 19]
    assert sorted(n for index in range(3) for n in read(numbers(index, 3))) == list(range(20))


def test_reading_goes_on_at_every_cursor():
    for batch in numbers(1, 3).batches(b""):
        assert read(numbers(1, 3), batch.cursor) == list(range(batch.batch + 3, 20, 3))


def test_another_number_of_workers_leaves_out_nothing():
    cursors = []
    seen = []
    for index, steps in enumerate([3, 1]):
        batches = list(itertools.islice(numbers(index, 2).batches(b""), steps))
        seen += [batch.batch for batch in batches]
        cursors.append(batches[-1].cursor)
    start = numbers().resumed(cursors, 0, 3)
    rest = [n for index in range(3) for n in read(numbers(index, 3), start)]
    assert set(seen + rest) == set(range(20))
    assert numbers().resumed([cursors[0], b""], 0, 3) == b""


def test_an_endless_one_is_read_as_far_as_it_is_asked_for():
    endless = GeneratedInput(itertools.count, index=0, count=1)
    batch = list(itertools.islice(endless.batches(b"generated batches=1000"), 3))[-1]
    assert (batch.batch, batch.where) == (1002, "batch 1002")


def test_a_cursor_of_another_input_is_refused():
    with pytest.raises(InvalidRequest, match="another kind of input"):
        read(numbers(), b"numbered batches=1 workers=1 batch_size=5")
