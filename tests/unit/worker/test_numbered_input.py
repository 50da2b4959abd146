import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.errors import InvalidRequest
from megalith.worker.numbered_input import NumberedInput


class Worker:
    """A worker of so many that share numbered batches, and the cursor that it begins at."""

    def __init__(self, num_batches, index, num_workers, batch_size=1, saved=(), cursor=b""):
        self.input = NumberedInput(
            lambda number: number, num_batches, index, num_workers, batch_size
        )
        self.cursor = self.input.resumed(saved, index, num_workers) if saved else cursor

    def read(self, most=None):
        """The numbers of the batches; afterwards it has read them."""
        numbers = []
        for each in itertools.islice(self.input.batches(self.cursor), most):
            numbers.append(each.batch)
            self.cursor = each.cursor
        return numbers

    @property
    def left(self):
        return self.input.remaining(self.cursor)


def workers(num_batches, num_workers, saved=(), batch_size=1):
    return [
        Worker(num_batches, index, num_workers, batch_size, saved) for index in range(num_workers)
    ]


@pytest.mark.golden("Extra.iterator")
def test_input_that_is_saved_at_1_goes_on_at_1_and_at_0_without_its_cursor():
    first = Worker(10, 0, 1)
    assert first.read(1) == [0]
    assert Worker(10, 0, 1, saved=[first.cursor]).read(1) == [1]
    assert Worker(10, 0, 1).read(1) == [0]


@pytest.mark.golden("G11")
def test_two_workers_go_on_each_at_its_own_place():
    """Monolith's test shares 0, 1, 2, ... between two: one has read 0, the other nothing."""
    one, other = workers(0, 2)
    one.read(1)
    assert [each.read(1) for each in workers(0, 2, (one.cursor, other.cursor))] == [[2], [1]]


def test_a_replacement_goes_on_in_the_same_run_at_its_cursor():
    worker = Worker(20, 1, 2)
    assert worker.left == 10
    worker.read(4)
    again = Worker(20, 1, 2, cursor=worker.cursor)
    assert again.left == 6
    assert again.read() == [9, 11, 13, 15, 17, 19]


def test_after_a_restart_nothing_is_left_out_and_what_is_left_is_known():
    earlier = workers(20, 2)
    for worker in earlier:
        worker.read(3)
    cursors = tuple(worker.cursor for worker in earlier)
    one, other = workers(20, 2, cursors)
    assert (one.left, other.left) == (7, 7)
    assert sorted(one.read() + other.read()) == list(range(6, 20))
    assert workers(0, 2, cursors)[0].left is None


@given(
    read_before=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    num_workers=st.integers(1, 5),
    sizes=st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3, 4])),
)
def test_whatever_changes_no_example_is_left_out(read_before, num_workers, sizes):
    """Batch n of size s has the examples n * s up to (n + 1) * s. Who read none had not begun."""
    before, after = sizes
    num_examples = 240
    earlier = workers(num_examples // before, len(read_before), batch_size=before)
    seen = set()
    cursors = []
    for worker, count in zip(earlier, read_before, strict=True):
        for number in worker.read(count):
            seen |= set(range(number * before, (number + 1) * before))
        cursors.append(worker.cursor)

    for worker in workers(num_examples // after, num_workers, cursors, after):
        for number in worker.read():
            seen |= set(range(number * after, (number + 1) * after))
    assert seen == set(range(num_examples))


def test_a_worker_that_had_not_begun_reads_from_the_start():
    one, _ = workers(0, 2)
    one.read(5)
    assert [each.read(1) for each in workers(0, 2, (one.cursor, b""))] == [[10], [1]]


def test_a_cursor_of_another_kind_of_input_is_refused_with_the_way_out():
    with pytest.raises(InvalidRequest, match=r"another kind of input.*--input-cursors false"):
        Worker(0, 0, 1, cursor=b"topic=clicks offset=7").read(1)


def test_a_save_before_all_workers_have_begun_with_another_batch_size_leaves_nothing_out():
    first_run = workers(0, 2, batch_size=10)
    for worker in first_run:
        worker.read(5)
    saved = tuple(worker.cursor for worker in first_run)
    second_run = workers(0, 2, saved, batch_size=20)
    # Examples 0..99 are read. Of the others, worker 1 is to read 100..119, and has not begun.
    second_run[0].read(1)
    third_run = workers(0, 2, (second_run[0].cursor, saved[1]), batch_size=10)
    first_examples = [worker.read(1)[0] * 10 for worker in third_run]
    assert min(first_examples) <= 100
