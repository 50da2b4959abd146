"""A worker's life from its welcome to its exit: the threads that work, and what their ends mean."""

import logging
import threading
from collections.abc import Callable

from megalith.errors import MegalithError
from megalith.runtime.process.lifecycle import ExitRequest
from megalith.runtime.task_loading import raised_at
from megalith.worker.duties.chief import Chief
from megalith.worker.duties.job_end import JobEnd
from megalith.worker.session.progress import Progress
from megalith.worker.session.view import ClusterView
from megalith.worker.steps.training import Training

logger = logging.getLogger(__name__)


class WorkerLife:
    """Trains the share, then stays in session until the job is over. `chief` is None for others.

    Its threads are daemons: a step that waits for a lost ps must not hold up the exit.
    """

    def __init__(
        self,
        training: Training,
        chief: Chief | None,
        view: ClusterView,
        progress: Progress,
        announce: Callable[[], None],
        job_end: JobEnd,
        exit_request: ExitRequest,
    ) -> None:
        self._training = training
        self._chief = chief
        self._view = view
        self._progress = progress
        self._announce = announce
        self._job_end = job_end
        self._exit_request = exit_request

    def begin(self, num_workers: int) -> None:
        """Called once, when the controller has welcomed this worker."""
        if self._chief is not None:
            self._start("initialize", self._chief.keep_initialized)

        self._start("train", lambda: self._train(num_workers))

    def _train(self, num_workers: int) -> None:
        self._training.run(num_workers)
        if self._view.is_stopping:
            return

        self._progress.set(is_share_over=True)
        self._announce()
        if self._chief is None or self._chief.see_to_the_end(num_workers):
            self._progress.set(is_finished=True)
            self._announce()

        # In session until the job is over, so that a restarted controller hears that this share is
        # done.
        if self._view.wait_for_end():
            self._exit_request.request(0, "the share is done")

    def _start(self, name: str, work: Callable[[], None]) -> None:
        threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True).start()

    def _guarded(self, work: Callable[[], None]) -> None:
        """The outer edge of a thread: a failure ends the process, with its reason.

        So does a task that calls sys.exit, which would end this thread and say nothing.
        """
        try:
            work()
        except BaseException as error:
            if self._view.is_stopping:  # what it worked with is being closed
                logger.info("given up while stopping: %s", error)
            elif isinstance(error, MegalithError):
                self._fail(f"{type(error).__name__}: {error}{notes_of(error)}")
            else:
                logger.exception("training failed")
                what = str(error) if isinstance(error, Exception) else repr(error)
                self._fail(f"training failed: {what}{raised_at(error)}{notes_of(error)}")

    def _fail(self, reason: str) -> None:
        if self._chief is not None:
            self._job_end.chief_failed(reason)
        self._exit_request.request(1, reason)


def notes_of(error: BaseException) -> str:
    """What was noted about an error on its way, such as its step and file; empty if nothing."""
    notes = getattr(error, "__notes__", ())
    return "".join(f"; {note}" for note in notes)
