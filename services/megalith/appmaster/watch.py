"""Following the controller until the job is over or the controller is gone for too long."""

import logging
import threading
import time
from collections.abc import Callable

from megalith.appmaster.job import FinalOutcome, Job
from megalith.control import ClusterStatus
from megalith.errors import MegalithError

logger = logging.getLogger(__name__)

_EVERY_S = 1.0


class JobWatch:
    """Looks once a second on a thread of its own.

    `seen` is the last answer; None while the controller is away. `finished(status, reason)` is
    called once, when there is nothing left to watch.
    """

    def __init__(
        self,
        job: Job,
        ask: Callable[[], ClusterStatus],
        patience_s: float,
        is_serving: Callable[[bool], None],
        finished: Callable[[int, str], None],
    ) -> None:
        self._job = job
        self._ask = ask
        self._patience_s = patience_s
        self._is_serving = is_serving
        self._finished = finished

        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-watch", daemon=True)

        self.seen: ClusterStatus | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End without joining: a look at a controller that hangs would be waited for."""
        self._stopping.set()

    def linger(self, seconds: float) -> bool:
        """Wait that long (False), or until told to stop (True)."""
        return self._stopping.wait(seconds)

    def _run(self) -> None:
        try:
            status, reason = self._follow()
        except Exception as error:
            logger.exception("watching the job failed")
            status = 1
            reason = f"watching the job failed: {error}"

        self._finished(status, reason)

    def _follow(self) -> tuple[int, str]:
        """(exit status, reason) once the job is over."""
        last_contact = time.monotonic()
        while not self._stopping.wait(_EVERY_S if self.seen else 0.0):
            try:
                seen = self._ask()
            except MegalithError as error:
                self.seen = None
                ending = self._job.ending
                if ending is not None:
                    return 0, f"the job is over: {ending.reason}"

                if time.monotonic() - last_contact > self._patience_s:
                    return 1, f"no controller for {self._patience_s:.0f} s: {error}"

                self._stopping.wait(_EVERY_S)
                continue

            self.seen = seen
            last_contact = time.monotonic()
            self._is_serving(True)

            if seen.outcome:
                self._job.ended(FinalOutcome(seen.outcome == "succeeded", seen.reason))
                return 0, f"the job {seen.outcome}: {seen.reason}"

        return 0, "told to stop"
