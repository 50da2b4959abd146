"""When the next save is due: by the clock, by steps, or never."""

import math
import threading


class SaveSchedule:
    """Counts from the last save, asked for or planned, and from the start. `_lock` guards where it counts from.

    Times are those of a monotonic clock: setting the machine's clock neither brings a save forward nor delays it.
    """

    def __init__(self, every_s: float, every_steps: int, now: float, step: int) -> None:
        self._every_s, self._every_steps = every_s, every_steps
        self._lock = threading.Lock()
        self._last_at, self._last_step = now, step

    def restart(self, now: float, step: int) -> None:
        """A save has been made, or tried."""
        with self._lock:
            self._last_at, self._last_step = now, step

    def is_due(self, now: float, step: int) -> bool:
        return (self._every_s > 0 and self.next_s(now) <= 0) or (
            self._every_steps > 0 and step >= self.next_step
        )

    def next_s(self, now: float) -> float:
        """Seconds until a save is due by the clock; infinite without one."""
        with self._lock:
            return self._last_at + self._every_s - now if self._every_s else math.inf

    @property
    def next_step(self) -> int:
        """The step at which a save is due; 0 without one."""
        with self._lock:
            return self._last_step + self._every_steps if self._every_steps else 0
