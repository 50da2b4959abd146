"""The serving replicas that say that they follow this job."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from megalith.errors import LimitExceeded, WrongRun
from megalith.wire.reports import ReplicaReport

_SHOWN_S = 600.0  # one that is silent for longer is not shown any more
_MOST = 1024


@dataclass(frozen=True, slots=True)
class HeardReplica:
    """A replica's last report, and how long ago it came."""

    report: ReplicaReport
    silent_s: float


class Replicas:
    """Their last reports by index. They are no members: nothing waits for them.

    `_lock` guards the reports.
    """

    def __init__(self, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._lock = threading.Lock()
        self._reports: dict[int, tuple[ReplicaReport, float]] = {}

    def report(self, job: str, report: ReplicaReport) -> None:
        """WrongRun for a replica of another job. Of two with one index the last to speak counts."""
        if job and self._job and job != self._job:
            raise WrongRun(f"replica-{report.index} is of job {job}, this one is {self._job}")

        now_s = self._clock()
        with self._lock:
            self._forget(now_s)
            if report.index not in self._reports and len(self._reports) >= _MOST:
                raise LimitExceeded(f"{_MOST} replicas report already")

            self._reports[report.index] = (report, now_s)

    def heard(self) -> list[HeardReplica]:
        """By index."""
        now_s = self._clock()
        with self._lock:
            self._forget(now_s)
            heard = []
            for _, (report, at_s) in sorted(self._reports.items()):
                heard.append(HeardReplica(report, now_s - at_s))

        return heard

    def _forget(self, now_s: float) -> None:
        silent = []
        for index, (_, at_s) in self._reports.items():
            if now_s - at_s > _SHOWN_S:
                silent.append(index)

        for index in silent:
            del self._reports[index]
