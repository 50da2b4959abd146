"""How a worker that fails takes the job with it, where that is the chief's to do."""

import logging
from collections.abc import Callable

from megalith.control import Controller, application
from megalith.errors import MegalithError
from megalith.worker.session.view import ClusterView

logger = logging.getLogger(__name__)

_END_JOB_S = 20.0  # for the controller to hear of the end; the save that follows takes its own time


class JobEnd:
    """Ends the job when its chief fails on a platform.

    Without its chief a job cannot end well, so there the chief takes the whole job down. Elsewhere
    whoever started this worker decides.
    """

    def __init__(self, find_controller: Callable[[], str], view: ClusterView) -> None:
        self._find_controller = find_controller
        self._view = view

    def chief_failed(self, reason: str) -> None:
        """Have the model saved and the job ended, if there is a platform to tell."""
        if application.has_appmaster() and not self._end_by_controller(reason):
            application.report_outcome(False, reason)

    def _end_by_controller(self, reason: str) -> bool:
        """Have the controller save the model and end the job, and wait for that.

        False if it does not answer.
        """
        controller = Controller(self._find_controller, None, _END_JOB_S)
        try:
            controller.end_job(False, reason)
            self._view.wait_for_end()
            return True
        except MegalithError as error:
            logger.error("nobody saves the model, the controller does not answer: %s", error)
            return False
        finally:
            controller.close()
