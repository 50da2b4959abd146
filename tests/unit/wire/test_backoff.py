"""Waiting between two tries of a call."""

import random
from types import SimpleNamespace

import pytest

from megalith.control import retry
from megalith.errors import Unavailable
from megalith.wire.backoff import JitteredBackoff


def waits(backoff, attempt, count=200):
    """Times that are drawn before the try after `attempt`."""
    state = SimpleNamespace(attempt_number=attempt)
    return [backoff(state) for _ in range(count)]


@pytest.mark.parametrize(
    ("attempt", "limit_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (5000, 1.0)]
)
def test_the_limit_of_a_wait_doubles_until_it_is_the_longest(attempt, limit_s):
    drawn = waits(JitteredBackoff(first_s=0.1, longest_s=1.0), attempt)
    assert min(drawn) >= 0.0
    assert 0.8 * limit_s < max(drawn) <= limit_s


def test_programs_with_the_same_seed_do_not_wait_equally_long():
    backoff = JitteredBackoff(first_s=0.1, longest_s=1.0)
    random.seed(1)
    first = waits(backoff, 5)
    random.seed(1)
    assert waits(backoff, 5) != first


def test_a_call_that_is_tried_again_leaves_the_random_numbers_of_the_program_alone():
    tries = []

    def fail_twice():
        tries.append(len(tries))
        if len(tries) < 3:
            raise Unavailable("not yet")

    random.seed(1)
    expected = random.random()
    random.seed(1)
    retry.until(60.0)(fail_twice)
    assert len(tries) == 3
    assert random.random() == expected
