"""The open sessions: who is at the other end of each, and how to tell them something."""

import itertools
import queue
from collections.abc import Callable

from megalith.controller.members.directives import Directive, Send, SessionEnd, ShutdownOrder
from megalith.controller.members.roster import Role, Seat

# Directives that a member may leave unread; a healthy one leaves none for longer than milliseconds
LIMIT = 128


class Mailbox:
    """Filled under the coordinator's lock, emptied by the session's thread.

    A member that stops reading fills it. Then it is closed: `on_overflow` is called once, and what
    comes later is dropped, because a member that comes back is told the whole state.
    """

    def __init__(self, on_overflow: Callable[[], None], limit: int = LIMIT) -> None:
        self._directives: queue.SimpleQueue[Directive] = queue.SimpleQueue()
        self._on_overflow = on_overflow
        self._limit = limit
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


class Sessions:
    """Sessions by number. Not thread-safe: the coordinator's lock guards it.

    Numbers are never used again, so a late word of an old session is told from one of its
    successor's.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._ends: dict[int, tuple[Seat, Send]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, session: int) -> bool:
        return session in self._ends

    def open(self, seat: Seat, send: Send) -> int:
        """A number for the session of the process that holds that seat now."""
        session = next(self._numbers)
        self._ends[session] = (seat, send)
        return session

    def close(self, session: int) -> Seat | None:
        """Forget the session; its seat, or None if it is closed already."""
        seat, _ = self._ends.pop(session, (None, None))
        return seat

    def seat_of(self, session: int) -> Seat | None:
        seat, _ = self._ends.get(session, (None, None))
        return seat

    def by_seat(self, *seats: Seat) -> dict[int, Send]:
        """The sessions of these seats, as far as they have one."""
        wanted = {id(seat) for seat in seats}
        found = {}

        for session, (seat, send) in self._ends.items():
            if id(seat) in wanted:
                found[session] = send

        return found

    def tell(self, directive: Directive, role: Role | None = None) -> list[int]:
        """Send to everybody, or to those of one role.

        The sessions that were told, by index of their seat.
        """
        addressed = []
        for session, (seat, send) in self._ends.items():
            if role is None or role is seat.role:
                addressed.append((seat.index, session, send))

        addressed.sort(key=lambda end: end[:2])

        told = []
        for _, session, send in addressed:
            send(directive)
            told.append(session)

        return told

    def hand_over(self, seat: Seat) -> None:
        """End what is left of earlier holders' sessions: another process has the seat now."""
        reason = f"{seat.name} was taken over by {seat.address}"

        for session, send in self.by_seat(seat).items():
            del self._ends[session]
            send(ShutdownOrder(reason))
            send(SessionEnd())
