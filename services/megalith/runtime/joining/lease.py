"""For how long a member may answer for its seat without a word from its controller."""

import threading
import time
from collections.abc import Callable

# After a renewal was sent; a seat whose holder is away is waited for so long before there is a new
# map
LEASE_S = 3.0
RENEW_S = LEASE_S / 3  # between two renewals
# The controller waits this much longer: an answer that was allowed at the last moment must have
# left by then.
LEASE_MARGIN_S = 0.5

# A process that ran all the time without a word from the controller for so long, in spite of its
# renewals, may believe that there is none. Less than a lease: nobody waits for it twice.
SILENCE_S = 2.0
BEAT_S = 0.25  # between two notes that this process runs
_LONGEST_PAUSE_S = 1.0  # between two beats; after a longer one the controller must be asked again


class Lease:
    """The right to answer for a seat, which ends by itself.

    It counts from the moment at which a renewal that the controller has answered was sent, so the
    controller, which heard it later, knows at least as late a time for the end.

    Beside that it knows whether the silence of the controller means anything. A process that was
    stopped (SIGSTOP, a suspended machine) has heard nothing either, and may have been replaced.
    `_lock` guards everything.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()

        self._ends_at = float("-inf")
        self._beat_at = float("-inf")
        self._silent_since = float("inf")  # inf: this process has not begun to beat
        self._is_denied = False  # since the last renewal

    def renew(self, sent_at: float) -> None:
        """The controller has answered what was sent at that time of the clock."""
        with self._lock:
            self._ends_at = max(self._ends_at, sent_at + LEASE_S)
            self._is_denied = False

    @property
    def is_held(self) -> bool:
        with self._lock:
            return self._clock() < self._ends_at

    def beat(self) -> None:
        """Note that this process runs; called every `BEAT_S` while it asks for renewals."""
        with self._lock:
            now = self._clock()
            if now - self._beat_at > _LONGEST_PAUSE_S:
                self._silent_since = now

            self._beat_at = now

    def deny(self) -> None:
        """The controller has said that this process has no seat, or is to exit.

        That stands until the controller renews the lease. If it falls silent meanwhile, another
        process may have the seat.
        """
        with self._lock:
            self._is_denied = True

    @property
    def is_controller_silent(self) -> bool:
        """Whether the lease is over although this process was there to hear of a renewal."""
        with self._lock:
            now = self._clock()
            has_run = now - self._beat_at <= _LONGEST_PAUSE_S
            if self._is_denied or now < self._ends_at or not has_run:
                return False

            return now - self._silent_since >= SILENCE_S
