import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.errors import InvalidRequest
from megalith.worker.numbered_input import NumberedInput


def read(worker, position=0, most=None):
    """The numbers of the batches from a position on."""
    numbers = (worker.number_of(each) for each in itertools.count(position))
    taken = itertools.takewhile(lambda number: number is not None, numbers)
    return list(itertools.islice(taken, most))


def workers(num_batches, num_workers, first_cursors=(), batch_size=1):
    all_of_them = [
        NumberedInput(num_batches, index, num_workers, batch_size) for index in range(num_workers)
    ]
    for worker in all_of_them:
        worker.begin(b"", first_cursors, 0)
    return all_of_them


@pytest.mark.golden("Extra.iterator")
def test_input_that_is_saved_at_1_goes_on_at_1_and_at_0_without_its_cursor():
    first = NumberedInput(10, 0, 1)
    first.begin(b"", (), 0)
    assert first.number_of(0) == 0
    for cursors, goes_on_at in (((first.cursor_at(1),), 1), ((), 0)):
        again = NumberedInput(10, 0, 1)
        again.begin(b"", cursors, 0)
        assert again.number_of(0) == goes_on_at


@pytest.mark.golden("G11")
def test_two_workers_go_on_each_at_its_own_place():
    """Monolith's test shares 0, 1, 2, ... between two: one has read 0, the other nothing."""
    one, other = workers(0, 2)
    cursors = (one.cursor_at(1), other.cursor_at(0))
    assert [worker.number_of(0) for worker in workers(0, 2, cursors)] == [2, 1]


def test_a_replacement_goes_on_in_the_same_run_at_its_position():
    worker = NumberedInput(20, 1, 2)
    worker.begin(b"", (), 0)
    again = NumberedInput(20, 1, 2)
    again.begin(worker.cursor_at(4), (), 4)
    assert read(again, 4) == read(worker, 4) == [9, 11, 13, 15, 17, 19]
    assert (worker.total, again.total) == (10, 10)


def test_after_a_restart_positions_begin_at_0_and_the_total_is_what_is_left():
    cursors = tuple(worker.cursor_at(3) for worker in workers(20, 2))
    one, other = workers(20, 2, cursors)
    assert (one.total, other.total) == (7, 7)
    assert sorted(read(one) + read(other)) == list(range(6, 20))
    assert workers(0, 2, cursors)[0].total is None


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
        for number in read(worker, 0, count):
            seen |= set(range(number * before, (number + 1) * before))
        cursors.append(worker.cursor_at(count) if count else b"")

    for worker in workers(num_examples // after, num_workers, cursors, after):
        for number in read(worker):
            seen |= set(range(number * after, (number + 1) * after))
    assert seen == set(range(num_examples))


def test_a_worker_that_had_not_begun_reads_from_the_start():
    one, _ = workers(0, 2)
    assert [each.number_of(0) for each in workers(0, 2, (one.cursor_at(5), b""))] == [10, 1]


def test_a_cursor_of_another_kind_of_input_is_refused_with_the_way_out():
    with pytest.raises(InvalidRequest, match=r"another kind of input.*--input-cursors false"):
        NumberedInput(0, 0, 1).begin(b"topic=clicks offset=7", (), 0)


def test_a_save_before_all_workers_have_begun_with_another_batch_size_leaves_nothing_out():
    first_run = tuple(worker.cursor_at(5) for worker in workers(0, 2, batch_size=10))
    second_run = workers(0, 2, first_run, batch_size=20)
    # Examples 0..99 are read. Of the others, worker 1 is to read 100..119, and has not begun.
    cursors = (second_run[0].cursor_at(1), first_run[1])
    third_run = workers(0, 2, cursors, batch_size=10)
    first_examples = [worker.number_of(0) * 10 for worker in third_run]
    assert min(first_examples) <= 100
