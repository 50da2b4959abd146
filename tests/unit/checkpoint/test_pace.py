"""A save rests while somebody trains, and only then."""

import itertools

import pytest

from megalith.checkpoint.pace import Pace, full_speed


class Time:
    def __init__(self):
        self.now_s = 100.0
        self.slept_s = 0.0

    def clock(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds > 0
        self.now_s += seconds
        self.slept_s += seconds

    def work(self, seconds):
        self.now_s += seconds


def paced(time, num_pushes, timeout_s=3600.0):
    return Pace(num_pushes, timeout_s, time.clock, time.sleep)


def always():
    """Pushes come all the time."""
    return itertools.count().__next__


def test_a_turn_with_pushes_is_followed_by_seven_times_its_length():
    time = Time()
    pace = paced(time, always())
    for _ in range(3):
        time.work(0.5)
        pace.rest()

    assert time.slept_s == pytest.approx(3 * 7 * 0.5)


def test_without_pushes_there_is_no_rest():
    time = Time()
    pace = paced(time, lambda: 7)
    for _ in range(3):
        time.work(0.5)
        pace.rest()

    assert time.slept_s == 0


def test_pushes_that_came_only_during_the_last_rest_count_too():
    """Work may have held up all others."""
    time = Time()
    count = [0]

    def sleep(seconds):
        time.sleep(seconds)
        count[0] += 1

    pace = Pace(lambda: count[0], 3600.0, time.clock, sleep)
    count[0] += 1
    time.work(0.5)
    pace.rest()
    time.work(0.5)
    pace.rest()
    assert time.slept_s == pytest.approx(2 * 7 * 0.5)


def test_a_rest_ends_when_training_does():
    """A turn that waited a minute for its disk would rest for seven beside a job that has ended."""
    time = Time()
    pace = paced(time, lambda: int(min(time.now_s, 170.0)))
    time.work(60.0)
    pace.rest()
    assert time.now_s <= 172.0

    time.work(60.0)
    pace.rest()
    assert time.now_s <= 232.0


def test_a_save_beside_which_nobody_trains_never_rests():
    pace = full_speed()
    pace.rest()


@pytest.mark.parametrize("timeout_s", [30.0, 600.0, 3600.0])
def test_the_rests_of_a_save_take_a_third_of_the_time_that_it_may_take(timeout_s):
    """Otherwise a large save under training takes longer than any save may, again and again."""
    time = Time()
    pace = paced(time, always(), timeout_s)
    work_s = timeout_s / 2
    for _ in range(1000):
        time.work(work_s / 1000)
        pace.rest()

    assert time.slept_s == pytest.approx(timeout_s / 3)
    assert time.now_s - 100.0 < timeout_s
