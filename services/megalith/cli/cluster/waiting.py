"""What a cluster that starts waits for, said on the screen every few seconds."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from rich.console import Console

from megalith.cli.screen.output import print_line
from megalith.control import ClusterStatus

_EVERY_S = 5.0
_READY = "parameter servers to get ready (the first ones on a machine compile their kernels)"
_ERROR = re.compile(r"^\S+ ERROR +\S+ [\w.]+: (.*)$", re.MULTILINE)
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
        self._console = console
        self._every_s = every_s
        self._clock = clock
        self._next = clock() + every_s

    def tell(self, what: str, processes: Iterable[Logging] = ()) -> None:
        """Say that `what` is waited for, and what the first of `processes` complained of last."""
        now = self._clock()
        if now < self._next:
            return

        self._next = now + self._every_s
        print_line(self._console, f"waiting for {what}{_first_complaint(processes)}")

    def tell_of(self, status: ClusterStatus, processes: Sequence[Logging]) -> None:
        """The same for a cluster that is not formed: who is missing, and what they complain of."""
        names = []

        for member in status.members:
            if not member.is_connected:
                names.append(member.name)

        ready = _READY
        if status.last_checkpoint:
            ready = f"parameter servers to restore {status.last_checkpoint}"

        what = ", ".join(names) or ready
        logging = [process for process in processes if process.name in names]
        self.tell(what, logging)


def _first_complaint(processes: Iterable[Logging]) -> str:
    for process in processes:
        text = complaint(process.logged())
        if text:
            return f"; {process.name} says: {text}"

    return ""


def complaint(log: str) -> str:
    """The last warning or error of a log; empty if there is none."""
    found = _COMPLAINT.findall(log)
    return found[-1] if found else ""


def failure_in(log: str) -> str:
    """Why a process ended: its last error, or else its last warning.

    What is warned of after that error is what it gave up while it stopped.
    """
    found = _ERROR.findall(log)
    return found[-1] if found else complaint(log)
