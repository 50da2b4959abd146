"""A bound on the bytes in flight: who would exceed it waits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from megalith.errors import Overloaded


class ByteBudget:
    """Bytes that may be held at once. The condition guards everything, also of the shares.

    A holder that needs more than the whole budget gets it when nobody else holds anything, so
    nothing waits for ever.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held = 0
        self._growing: dict[Share, None] = {}  # in the order in which they began
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
            self.release(nbytes)

    def take(self, nbytes: int, timeout_s: float) -> None:
        """Hold `nbytes` until they are given back.

        Overloaded if they are not free within `timeout_s`.
        """
        with self._freed:
            left_s = max(0.0, timeout_s)
            is_free = self._freed.wait_for(lambda: self._fits(nbytes), left_s)
            if not is_free:
                raise self._refusal(nbytes, timeout_s)

            self._held += nbytes

    def release(self, nbytes: int) -> None:
        with self._freed:
            self._held -= nbytes
            self._freed.notify_all()

    def has_room(self, nbytes: int) -> bool:
        """Whether `take` would not wait now."""
        with self._freed:
            return self._fits(nbytes)

    @contextmanager
    def share(self) -> Iterator["Share"]:
        """A part of the budget that begins with nothing, and is given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self._end(share)

    def _fits(self, nbytes: int) -> bool:
        return self._held == 0 or self._held + nbytes <= self._limit

    def _take_for(self, share: "Share", nbytes: int, timeout_s: float) -> None:
        with self._freed:
            if not self._freed.wait_for(lambda: self._fits(nbytes), max(0.0, timeout_s)):
                raise self._refusal(nbytes, timeout_s)

            self._held += nbytes
            share.held_bytes += nbytes

    def _grow(self, share: "Share", nbytes: int, timeout_s: float) -> None:
        with self._freed:
            self._growing.setdefault(share)
            left_s = max(0.0, timeout_s)
            has_room = self._freed.wait_for(
                lambda: self._fits(nbytes) or self._is_first(share),
                left_s,
            )
            if not has_room:
                raise self._refusal(nbytes, timeout_s)

            self._held += nbytes
            share.held_bytes += nbytes

    def _is_first(self, share: "Share") -> bool:
        """Whether everything is held by shares that grow, and this one is the oldest of them.

        Then all would wait for each other. The oldest goes on, so the limit is exceeded by one
        request at most.
        """
        return next(iter(self._growing)) is share and self._held == sum(
            each.held_bytes for each in self._growing
        )

    def _stop_growing(self, share: "Share") -> None:
        with self._freed:
            self._growing.pop(share, None)
            self._freed.notify_all()

    def _end(self, share: "Share") -> None:
        with self._freed:
            self._growing.pop(share, None)
            self._held -= share.held_bytes
            share.held_bytes = 0
            self._freed.notify_all()

    def _refusal(self, nbytes: int, timeout_s: float) -> Overloaded:
        return Overloaded(
            f"{self._held} of {self._limit} bytes are in flight and {nbytes} more found no room in "
            f"{timeout_s:.1f} s; slow down, or raise the limit of bytes in flight"
        )


class Share:
    """What one request holds of a budget."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def take(self, nbytes: int, timeout_s: float) -> None:
        """Hold `nbytes` more; Overloaded if they are not free within `timeout_s`."""
        self._budget._take_for(self, nbytes, timeout_s)

    def grow(self, nbytes: int, timeout_s: float) -> None:
        """Like `take`, for a request that arrives in pieces until it is `complete`."""
        self._budget._grow(self, nbytes, timeout_s)

    def complete(self) -> None:
        """All of it has arrived."""
        self._budget._stop_growing(self)
