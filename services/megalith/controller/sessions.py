"""The open sessions: who is at the other end of each, and how to tell them something."""

import itertools

from megalith.controller.directives import Directive, Send, SessionEnd, ShutdownOrder
from megalith.controller.roster import Place, Role


class Sessions:
    """Sessions by number. Not thread-safe: the coordinator's lock guards it.

    Numbers are never used again, so a late word of an old session is told from one of its successor's.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._ends: dict[int, tuple[Place, Send]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, session: int) -> bool:
        return session in self._ends

    def open(self, place: Place, send: Send) -> int:
        """A number for the session of the process that holds that place now."""
        session = next(self._numbers)
        self._ends[session] = (place, send)
        return session

    def close(self, session: int) -> Place | None:
        """Forget the session; its place, or None if it is closed already."""
        place, _ = self._ends.pop(session, (None, None))
        return place

    def place_of(self, session: int) -> Place | None:
        place, _ = self._ends.get(session, (None, None))
        return place

    def by_place(self, *places: Place) -> dict[int, Send]:
        """The sessions of these places, as far as they have one."""
        wanted = {id(place) for place in places}
        return {
            session: send for session, (place, send) in self._ends.items() if id(place) in wanted
        }

    def tell(self, directive: Directive, role: Role | None = None) -> list[int]:
        """Send to everybody, or to those of one role; the sessions that were told, by index of their place."""
        told = sorted(
            (place.index, session)
            for session, (place, _) in self._ends.items()
            if role in (None, place.role)
        )
        for _, session in told:
            self._ends[session][1](directive)
        return [session for _, session in told]

    def hand_over(self, place: Place) -> None:
        """End what is left of earlier holders' sessions: another process has the place now."""
        for session, send in self.by_place(place).items():
            del self._ends[session]
            send(ShutdownOrder(f"{place.role} {place.index} was taken over by {place.address}"))
            send(SessionEnd())
