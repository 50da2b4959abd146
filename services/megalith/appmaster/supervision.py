"""Which processes of the job run, and which are started again after they died."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megalith.errors import InvalidRequest, NotFound, NotSupervised, ProcessAlive

logger = logging.getLogger(__name__)

_PRESENT_S = 5.0  # a supervisor calls twice a second; one silent for this long is gone
_MAX_NAME = 128
_MAX_NAMED = 16  # processes in a message


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process as whoever starts it sees it.

    `exit_status` counts once it does not run, negative for a signal.
    """

    name: str
    pid: int
    starts: int
    is_running: bool
    exit_status: int = 0

    @property
    def has_failed(self) -> bool:
        """Whether it died.

        A controller that exits by itself, with any status, has ended the job.
        """
        if self.is_running:
            return False

        return self.exit_status < 0 if self.name == "controller" else self.exit_status != 0


def kept_max_restarts(kept: Mapping[str, Any], default: int = 0) -> int:
    """The policy that an earlier AppMaster wrote down, if one did.

    ValueError for one that cannot be.
    """
    count = kept.get("max_restarts", default)
    if not isinstance(count, int) or count < 0:
        raise ValueError(f"max_restarts={count!r} is not a number from 0")

    return count


class Supervision:
    """The restart policy, and what was last heard of the processes.

    Decides from each report alone: a process says how often it was started, so an answer that got
    lost is given again and never counted twice. `_lock` guards everything here.
    """

    def __init__(
        self,
        max_restarts: int,
        kept: Mapping[str, Any],
        keep: Callable[[dict[str, Any]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep = keep
        self._clock = clock

        self._lock = threading.Lock()
        self._max_restarts = kept_max_restarts(kept, max_restarts)
        self._processes: tuple[ProcessState, ...] = ()
        # By name, how often a process had been started when an operator asked for one more start.
        self._wanted: dict[str, int] = {}

        self._heard_at: float | None = None
        self._has_told_end = False

    @property
    def max_restarts(self) -> int:
        with self._lock:
            return self._max_restarts

    @max_restarts.setter
    def max_restarts(self, count: int) -> None:
        if count < 0:
            raise InvalidRequest(f"max_restarts={count}: below 0; 0 = no restarts")

        with self._lock:
            self._max_restarts = count
            self._keep({"max_restarts": count})

        logger.info("restart policy max_restarts=%d", count)

    @property
    def is_supervised(self) -> bool:
        """Whether somebody who can start and end processes has called lately."""
        with self._lock:
            return self._is_present()

    @property
    def is_end_to_be_told(self) -> bool:
        """Whether somebody supervises this job who has not been told that it is over.

        Also somebody who has been silent for a while: a supervisor on a busy machine, or one that
        waits for a controller that hangs, is late but not gone.
        """
        with self._lock:
            return self._heard_at is not None and not self._has_told_end

    def processes(self) -> tuple[ProcessState, ...]:
        with self._lock:
            return self._processes

    def restarts(self) -> int:
        """Starts beyond the first, of all processes."""
        return sum(process.starts - 1 for process in self.processes())

    def hear(self, processes: Sequence[ProcessState], is_over: bool) -> list[str]:
        """Take a report; returns the names to start again.

        A malformed one is InvalidRequest and changes nothing.
        """
        _check(processes)
        with self._lock:
            self._processes = tuple(processes)
            self._heard_at = self._clock()
            self._has_told_end = is_over
            self._forget_done_wishes(processes)
            if is_over:
                return []

            return [process.name for process in processes if self._is_to_start(process)]

    def _forget_done_wishes(self, processes: Sequence[ProcessState]) -> None:
        """An operator's wish is done once the process was started more often than before it."""
        starts_by_name = {process.name: process.starts for process in processes}
        still_wanted = {}

        for name, starts_then in self._wanted.items():
            starts = starts_by_name.get(name)
            if starts is not None and starts <= starts_then:
                still_wanted[name] = starts_then

        self._wanted = still_wanted

    def restart(self, name: str) -> None:
        """Have a process that is down started again, whatever the policy says."""
        with self._lock:
            if not self._is_present():
                raise NotSupervised(
                    f"{name}: nobody supervises this job; start it with the command that started it"
                )

            process = self._find(name)
            if process.is_running:
                raise ProcessAlive(f"{name} runs as process {process.pid}; kill that one first")

            self._wanted[name] = process.starts

        logger.info("restart asked for process=%s", name)

    def _find(self, name: str) -> ProcessState:
        for process in self._processes:
            if process.name == name:
                return process

        names = [process.name for process in self._processes[:_MAX_NAMED]]
        known = ", ".join(names)
        raise NotFound(f"no process {name!r}; known are {known}")

    def _is_present(self) -> bool:
        return self._heard_at is not None and self._clock() - self._heard_at < _PRESENT_S

    def _is_to_start(self, process: ProcessState) -> bool:
        if process.is_running:
            return False
        if process.name in self._wanted:
            return True

        return process.has_failed and process.starts <= self._max_restarts


def _check(processes: Sequence[ProcessState]) -> None:
    counts = Counter(process.name for process in processes)
    for process in processes:
        name = process.name

        if not 0 < len(name) <= _MAX_NAME:
            raise InvalidRequest(
                f"a process name of {len(name)} characters; 1 to {_MAX_NAME} are taken"
            )

        if counts[name] > 1:
            raise InvalidRequest(f"process {name} occurs {counts[name]} times in one report")

        if process.starts < 1 or process.pid < 0:
            raise InvalidRequest(
                f"process {name}: starts={process.starts} pid={process.pid}; "
                "starts begin at 1, a pid at 0"
            )
