"""Directives on their way to one session: a bounded queue that never makes the sender wait."""

import queue
from collections.abc import Callable

from megalith.controller.directives import Directive, SessionEnd

LIMIT = 128  # directives that a member may leave unread; a healthy one leaves none for longer than milliseconds


class Mailbox:
    """Filled under the coordinator's lock, emptied by the session's thread.

    A member that stops reading fills it. Then it is closed: `on_overflow` is called once, and what comes later is
    dropped, because a member that comes back is told the whole state.
    """

    def __init__(self, on_overflow: Callable[[], None], limit: int = LIMIT) -> None:
        self._directives: queue.SimpleQueue[Directive] = queue.SimpleQueue()
        self._on_overflow, self._limit = on_overflow, limit
        self._is_closed = False

    def put(self, directive: Directive) -> None:
        if self._is_closed:
            return
        if self._directives.qsize() < self._limit:
            self._directives.put(directive)
            return
        self._is_closed = True
        self._on_overflow()

    def close(self) -> None:
        """End the session's wait; safe from any thread, any number of times."""
        self._directives.put(SessionEnd())

    def get(self) -> Directive:
        """Wait for the next directive."""
        return self._directives.get()
