"""The right to answer for a place, which ends by itself."""

from megalith.runtime.lease import LEASE_S, Lease


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
