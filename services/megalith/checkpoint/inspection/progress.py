"""How long work on a checkpoint says how far it is."""

from typing import Protocol


class ProgressDisplay(Protocol):
    """Whoever shows how far the work is, for example a bar in a terminal."""

    def begin(self, what: str, total_bytes: int) -> None:
        """The next piece of work; `what` names it for people."""
        ...

    def add(self, done_bytes: int) -> None:
        """So much more of that piece is done."""
        ...


class NoProgress:
    """For whoever does not look."""

    def begin(self, what: str, total_bytes: int) -> None:
        pass

    def add(self, done_bytes: int) -> None:
        pass
