"""What a controller that is stopped tells its members, and the controller after it."""

import logging
from pathlib import Path

from megalith.controller.coordinator import Coordinator
from megalith.controller.members import job_files
from megalith.controller.members.journal_file import JournalKeeper
from megalith.controller.ownership import ModelDirOwnership
from megalith.controller.saving.schedule import Unsaved
from megalith.controller.selection.formation import Formation
from megalith.runtime.process.lifecycle import ExitRequest

logger = logging.getLogger(__name__)

_LEAVE_S = 1.0  # for members to leave when this process is told to stop
_ENDED = "the job has ended, its controller was stopped"


class LastWords:
    """Reads those of the controller before this one, and says its own.

    `dies_with_starter` says that whoever started this process keeps its standard input, as
    `megalith up` does, and starts no other controller.
    """

    def __init__(
        self,
        model_dir: Path,
        coordinator: Coordinator,
        formation: Formation,
        journal: JournalKeeper,
        ownership: ModelDirOwnership,
        unsaved: Unsaved,
        exit_request: ExitRequest,
        *,
        dies_with_starter: bool,
    ) -> None:
        self._model_dir = model_dir
        self._coordinator = coordinator
        self._formation = formation
        self._journal = journal
        self._ownership = ownership
        self._unsaved = unsaved
        self._exit_request = exit_request
        self._dies_with_starter = dies_with_starter
        self.has_served = False

    def read(self) -> None:
        """Count what the controller before this one could tell nobody among the losses."""
        text = job_files.last_words(self._model_dir)
        if not text:
            return

        self._coordinator.add_loss(text)
        self._journal.flush()
        job_files.forget_last_words(self._model_dir)

    def say(self) -> bool:
        """Say what is not saved, and have members leave if the job is over; whether it is."""
        self._say_unsaved()

        is_ended = self._is_job_ended()
        is_over = is_ended or self._coordinator.knows_nothing
        self._formation.dismiss(_ENDED if is_ended else "")
        if is_ended:
            self._coordinator.dismiss(_ENDED, _LEAVE_S)
            job_files.record_ended_run(self._model_dir, self._coordinator.run_id)

        return is_over

    def _say_unsaved(self) -> None:
        if self._coordinator.outcome is not None:
            return

        unsaved = self._unsaved.text()
        if not unsaved:
            return

        logger.warning("stopped before the end of the job; not saved: %s", unsaved)
        if self._is_starter_gone():
            job_files.leave_last_words(
                self._model_dir,
                f"the job before this one died with the process that ran it; not saved: {unsaved}",
            )

    def _is_job_ended(self) -> bool:
        """Whether members are to exit with this controller.

        Otherwise they look for the next one.
        """
        if not self.has_served or self._ownership.is_replaced:
            return False

        return self._coordinator.outcome is not None or self._dies_with_starter

    def _is_starter_gone(self) -> bool:
        """Whether whoever would have said why this process ends has died.

        Then nobody asked it to stop.
        """
        is_asked = self._exit_request.status != 0  # by a signal, or by a newer controller
        return self.has_served and self._dies_with_starter and not is_asked
