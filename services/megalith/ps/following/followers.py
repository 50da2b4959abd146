"""The replicas that follow this ps, and those that may come back."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from megalith.errors import IndexTaken, Overloaded
from megalith.ps.following.follower import Follower

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class FollowerSeat:
    """One replica by name. `left_s` is when its stream ended; None while it follows."""

    follower: Follower
    left_s: float | None = None


class Followers:
    """By name. What changed is kept for one that left, for `memory_s`, so that it can go on.

    `_lock` guards the seats.
    """

    def __init__(
        self, most: int, memory_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._memory_s = memory_s
        self._clock = clock
        self._lock = threading.Lock()
        self._seats: dict[str, FollowerSeat] = {}

    def enter(self, name: str, follower: Follower) -> FollowerSeat:
        """Take the seat of that name. An older stream that still has it ends.

        Overloaded if as many follow as may. Who is away takes no seat: the one that has been away
        longest is forgotten if there are too many.
        """
        seat = FollowerSeat(follower)
        forgotten: dict[str, FollowerSeat] = {}
        with self._lock:
            others = {other: seat for other, seat in self._seats.items() if other != name}
            away = [other for other, seat in others.items() if seat.left_s is not None]

            if len(others) - len(away) >= self._most:
                raise Overloaded(
                    f"{len(others) - len(away)} replicas follow this ps already, and "
                    f"--max-replicas is {self._most}; each takes a thread here"
                )

            if len(others) >= self._most:
                longest = min(away, key=lambda other: others[other].left_s or 0.0)
                forgotten[longest] = self._seats.pop(longest)

            self._seats[name] = seat

        _dismiss(forgotten, f"--max-replicas is {self._most}, and others follow")
        return seat

    def check_held(self, name: str, seat: FollowerSeat) -> None:
        """IndexTaken if the seat was taken by a newer stream."""
        with self._lock:
            is_held = self._seats.get(name) is seat

        if not is_held:
            raise IndexTaken(
                f"a newer stream follows as {name}; if that is another process, two replicas have "
                "one --index: give each its own"
            )

    def leave(self, name: str, seat: FollowerSeat) -> None:
        """Its stream has ended. Nothing happens if a newer one has the seat."""
        with self._lock:
            if self._seats.get(name) is seat:
                seat.left_s = self._clock()

    def is_anybody_there(self) -> bool:
        """Whether somebody follows, or may come back; those who stay away are forgotten."""
        now_s = self._clock()
        with self._lock:
            gone = {}
            for name, seat in self._seats.items():
                if seat.left_s is not None and now_s - seat.left_s > self._memory_s:
                    gone[name] = seat

            for name in gone:
                del self._seats[name]

            is_anybody = bool(self._seats)

        _dismiss(gone, f"it has been away for more than {self._memory_s:.0f} s")
        return is_anybody

    @property
    def names(self) -> list[str]:
        """Those that follow now."""
        with self._lock:
            return sorted(name for name, seat in self._seats.items() if seat.left_s is None)


def _dismiss(seats: Mapping[str, FollowerSeat], why: str) -> None:
    for name, seat in seats.items():
        seat.follower.dismiss()
        logger.warning(
            "what changes is not kept for %s any more: %s; it gets all rows when it comes back",
            name,
            why,
        )
