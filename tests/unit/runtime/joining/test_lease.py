"""The right to answer for a place, which ends by itself."""

from megalith.runtime.joining.lease import LEASE_S, SILENCE_S, Lease


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_lease_counts_from_when_its_renewal_was_sent_not_from_when_it_was_answered():
    clock = Clock()
    lease = Lease(clock)
    assert not lease.is_held
    clock.now = 102.0
    lease.renew(100.0)
    assert lease.is_held
    clock.now = 100.0 + LEASE_S
    assert not lease.is_held


def test_an_answer_that_comes_late_does_not_shorten_a_lease():
    clock = Clock()
    lease = Lease(clock)
    lease.renew(100.0)
    lease.renew(98.0)
    clock.now = 100.0 + LEASE_S - 0.01
    assert lease.is_held


def beat_until(lease, clock, end):
    while clock.now < end:
        lease.beat()
        clock.now += 0.25
    lease.beat()


def test_a_controller_is_silent_once_the_lease_of_a_process_that_ran_is_over():
    clock = Clock()
    lease = Lease(clock)
    assert not lease.is_controller_silent
    lease.renew(100.0)
    beat_until(lease, clock, 100.0 + LEASE_S - 0.25)
    assert not lease.is_controller_silent
    beat_until(lease, clock, 100.0 + LEASE_S)
    assert lease.is_controller_silent


def test_a_process_that_did_not_run_must_ask_again_before_it_calls_the_controller_silent():
    clock = Clock()
    lease = Lease(clock)
    lease.renew(100.0)
    beat_until(lease, clock, 101.0)
    clock.now = 200.0
    assert not lease.is_controller_silent
    beat_until(lease, clock, 200.0 + SILENCE_S - 0.25)
    assert not lease.is_controller_silent
    beat_until(lease, clock, 200.0 + SILENCE_S)
    assert lease.is_controller_silent


def test_a_controller_that_says_that_the_seat_is_taken_is_not_silent():
    clock = Clock()
    lease = Lease(clock)
    beat_until(lease, clock, 110.0)
    assert lease.is_controller_silent
    lease.deny()
    assert not lease.is_controller_silent


def test_a_process_that_was_denied_its_seat_waits_for_the_controller_however_long_that_is_silent():
    clock = Clock()
    lease = Lease(clock)
    lease.renew(100.0)
    lease.deny()
    beat_until(lease, clock, 150.0)
    assert not lease.is_controller_silent
    lease.renew(150.0)
    beat_until(lease, clock, 150.0 + LEASE_S)
    assert lease.is_controller_silent
