"""Holding writes up for a moment, so that what one ps holds can be copied between two of them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class WriteGate:
    """Writes pass side by side. Whoever closes the gate waits for those inside, and is then alone.

    `_changed` guards how many writes are inside, and whether the gate is closed.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Inside, a write is done: it is before or after each closing, never in the middle."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._inside += 1

        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Inside, no write is under way and none begins."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._is_closed = True
            self._changed.wait_for(lambda: not self._inside)

        try:
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()
