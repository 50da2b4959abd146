"""A bound on the bytes in flight: who would exceed it waits."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from megalith.wire.errors import LimitExceeded


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
        """Hold `nbytes` inside; LimitExceeded if they are not free within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        with self._freed:
            if not self._freed.wait_for(lambda: self._fits(nbytes), max(0.0, deadline - time.monotonic())):
                raise LimitExceeded(
                    f"{self._held} of {self._limit} bytes are in flight and {nbytes} more found no room in "
                    f"{timeout_s:.1f} s; slow down, or raise the limit of bytes in flight"
                )
            self._held += nbytes
        try:
            yield
        finally:
            with self._freed:
                self._held -= nbytes
                self._freed.notify_all()

    def _fits(self, nbytes: int) -> bool:
        return self._held == 0 or self._held + nbytes <= self._limit
