"""Telling the controller where a replica is, and how it is."""

import logging
import threading
from collections.abc import Callable

from megalith.control.controller import Controller
from megalith.errors import MegalithError
from megalith.wire.reports import ReplicaReport

logger = logging.getLogger(__name__)

_ANSWER_S = 2.0  # for the controller to answer


class Reporting:
    """Sends a report every `every_s` seconds. A controller that is away is tried again."""

    def __init__(
        self,
        controller: Controller,
        job: str,
        report: Callable[[], ReplicaReport],
        every_s: float,
    ) -> None:
        self._controller = controller
        self._job = job
        self._report = report
        self._every_s = every_s
        self._last_error = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def send(self) -> None:
        """Report now; WrongRun if the controller is that of another job."""
        self._controller.report_replica(self._report(), self._job, _ANSWER_S)

    def _run(self) -> None:
        while True:
            self._try_to_send()
            if self._stopping.wait(self._every_s):
                return

    def _try_to_send(self) -> None:
        error = ""
        try:
            self.send()
        except MegalithError as caught:
            error = str(caught)
        except Exception:
            logger.exception("reporting failed")

        if error and not self._last_error:
            logger.warning("the controller does not hear of this replica: %s", error)

        self._last_error = error
