"""What a cluster that starts waits for, said on the screen every few seconds."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from rich.console import Console

from megalith.client import ClusterStatus

_EVERY_S = 5.0
_READY = "parameter servers to get ready (the first ones on a machine compile their kernels)"
_COMPLAINT = re.compile(r"^\S+ (?:WARNING|ERROR) +\S+ [\w.]+: (.*)$", re.MULTILINE)


class Logging(Protocol):
    """A process with a log; what an earlier one left there does not count."""

    name: str

    def logged(self) -> str: ...


class WaitingLines:
    """One line each time that `every_s` have gone by since the last one, or since the start."""

    def __init__(
        self,
        console: Console,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._every_s, self._clock = console, every_s, clock
        self._next = clock() + every_s

    def tell(self, what: str, processes: Iterable[Logging] = ()) -> None:
        """Say that `what` is waited for, with the last complaint in the logs of those who are waited for."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._every_s
        said = next(
            (f"; {it.name} says: {text}" for it in processes if (text := complaint(it.logged()))),
            "",
        )
        self._console.print(
            f"waiting for {what}{said}", highlight=False, soft_wrap=True, markup=False
        )

    def tell_of(self, status: ClusterStatus, processes: Sequence[Logging]) -> None:
        """The same for a cluster that is not formed: who is missing, and what the first of them complains of."""
        missing = [
            (member.role, member.index) for member in status.members if not member.is_connected
        ]
        names = [f"{role}-{index}" for role, index in missing]
        what = ", ".join(f"{role} {index}" for role, index in missing) or _READY
        self.tell(what, [process for process in processes if process.name in names])


def complaint(log: str) -> str:
    """The last warning or error of a log; empty if there is none."""
    found = _COMPLAINT.findall(log)
    return found[-1] if found else ""
