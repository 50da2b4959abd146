"""When the AppMaster last heard from the job."""

import threading
import time
from collections.abc import Callable


class Heartbeats:
    """Counts them; the lock guards count and time."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._last_s = 0.0

    def heard(self) -> None:
        with self._lock:
            self._count += 1
            self._last_s = self._clock()

    @property
    def count(self) -> int:
        with self._lock:
            return self._count

    @property
    def last_s(self) -> float:
        """Unix time of the last one; 0 = none yet."""
        with self._lock:
            return self._last_s
