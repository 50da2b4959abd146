"""A bound on the bytes in flight: who would exceed it waits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from megalith.wire.errors import Overloaded


class ByteBudget:
    """Bytes that may be held at once. The condition guards `_held`.

    A holder that needs more than the whole budget gets it when nobody else holds anything, so nothing waits for ever.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._freed = threading.Condition()

    @property
    def held_bytes(self) -> int:
        with self._freed:
            return self._held

    @contextmanager
    def holding(self, nbytes: int, timeout_s: float) -> Iterator[None]:
        """Hold `nbytes` inside; Overloaded if they are not free within `timeout_s`."""
        self.take(nbytes, timeout_s)
        try:
            yield
        finally:
            self.give_back(nbytes)

    def take(self, nbytes: int, timeout_s: float) -> None:
        """Hold `nbytes` until they are given back; Overloaded if they are not free within `timeout_s`."""
        with self._freed:
            if not self._freed.wait_for(lambda: self._fits(nbytes), max(0.0, timeout_s)):
                raise Overloaded(
                    f"{self._held} of {self._limit} bytes are in flight and {nbytes} more found no room in "
                    f"{timeout_s:.1f} s; slow down, or raise the limit of bytes in flight"
                )
            self._held += nbytes

    def give_back(self, nbytes: int) -> None:
        with self._freed:
            self._held -= nbytes
            self._freed.notify_all()

    def has_room(self, nbytes: int) -> bool:
        """Whether `take` would not wait now."""
        with self._freed:
            return self._fits(nbytes)

    def _fits(self, nbytes: int) -> bool:
        return self._held == 0 or self._held + nbytes <= self._limit
