"""For how long a parameter server may answer for its place without a word from its controller."""

import threading
import time
from collections.abc import Callable

LEASE_S = 3.0  # after a renewal was sent; a place whose holder is away is waited for so long before it gets a new map
RENEW_S = LEASE_S / 3  # between two renewals
# The controller waits this much longer: an answer that was allowed at the last moment must have left by then.
LEASE_MARGIN_S = 0.5


class Lease:
    """The right to answer for a place, which ends by itself.

    It counts from the moment at which a renewal that the controller has answered was sent, so the controller, which
    heard it later, knows at least as late a time for the end. `_lock` guards that moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ends_at = float("-inf")

    def renew(self, sent_at: float) -> None:
        """The controller has answered what was sent at that time of the clock."""
        with self._lock:
            self._ends_at = max(self._ends_at, sent_at + LEASE_S)

    @property
    def is_held(self) -> bool:
        with self._lock:
            return self._clock() < self._ends_at
