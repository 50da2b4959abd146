"""How a job ends: what was trained is saved first, then there is an outcome."""

import logging
import math
import threading
import time
from collections.abc import Callable

from megalith.control import application
from megalith.controller.coordinator import Coordinator
from megalith.controller.guarded import guarded
from megalith.controller.members.barrier import HolderKind
from megalith.controller.members.journal_file import JournalKeeper
from megalith.controller.saving.records import SavedCheckpoint
from megalith.controller.saving.saves import Saver
from megalith.controller.saving.schedule import Unsaved
from megalith.controller.selection.formation import Formation
from megalith.errors import NotReady, ShardLost
from megalith.runtime.process.lifecycle import ExitRequest

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_WAY_OUT = (
    "the parameter servers stay up; mend it, or end the job without saving: megalith ctl app kill"
)

_HEAR_S = 30.0  # for each ps to report twice; with heartbeats so long the save is made all the same
_STOP_HOLD_S = 30.0  # for workers to block before they are let go to their end
_DISMISS_S = 3.0  # for members to leave once they are told to
_LINGER_S = 2.0  # longer than the poll of whoever watches the job, so that they see its outcome


class JobEnding:
    """Decides the outcome of a job. `run` belongs to one thread; `ask` may be called from any.

    A job whose workers are done is saved until that succeeds, however long it takes. A job that
    fails is saved too, but it tries no longer than `timeout_s`. Whoever ends a job that goes well
    waits that long for a ps that is missing.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        saver: Saver,
        unsaved: Unsaved,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._saver = saver
        self._unsaved = unsaved
        self._timeout_s = timeout_s
        self._clock = clock
        self._stop_file = ""  # name of the file that ended training, if one has

    def ask(self, succeeded: bool, reason: str, at_once: bool) -> None:
        """End the job: after a last save, or `at_once`.

        The first call decides the outcome and its reason.
        """
        if at_once:
            self._coordinator.end(succeeded, self._with_losses(reason))
        else:
            self._coordinator.begin_end(succeeded, reason)

    def stop_training(self, file: str) -> None:
        """Have every worker end its share, as a file says: it hears of that while it is held."""
        let_go = self._coordinator.hold("Stop", file, _STOP_HOLD_S, HolderKind.ACTION)
        self._stop_file = file
        let_go()

    @property
    def _finished(self) -> str:
        """Why a job ends that nobody ended by a call."""
        if self._stop_file:
            return f"all workers finished, as the file {self._stop_file} says"

        early = self._coordinator.early_ends()
        reasons = set(early.values())
        if not early:
            return "all workers finished"
        if len(early) == self._coordinator.num_workers and len(reasons) == 1:
            return f"all workers ended their shares early: {reasons.pop()}"

        each = ", ".join(f"{name} ({reason})" for name, reason in early.items())
        return f"all workers finished; their shares ended early: {each}"

    @property
    def said(self) -> str:
        """Why the job ends, while it is saved for the last time; empty when it is not."""
        if not self._coordinator.is_saving_last:
            return ""

        _, reason = self._coordinator.ending or (True, self._finished)
        return reason

    def run(self, stop: Callable[[], bool]) -> None:
        """Wait until the job has trained or is to end, save, and decide the outcome.

        Returns when there is one.
        """
        if not self._coordinator.wait_until_saving(stop):
            return

        was_asked_for = self._coordinator.ending is not None
        said = self._save(stop)
        if said is not None and not was_asked_for:
            said = self._wait_for_workers(said, stop)
        if said is None:
            return

        succeeded, reason = self._coordinator.ending or (True, self._finished)
        parts = [reason, said]
        if succeeded:
            parts += self._coordinator.untrained_shares()

        self._coordinator.end(succeeded, "; ".join(parts))

    def _wait_for_workers(self, said: str, stop: Callable[[], bool]) -> str | None:
        """After the save the chief evaluates.

        Returns what became of the model, or None as `_save` does.
        """
        self._coordinator.mark_saved()
        if not self._coordinator.wait_until_workers_finish(stop):
            return None

        # A worker that the chief did not wait for may have trained on.
        return self._save(stop) if self._unsaved.is_behind else said

    def _with_losses(self, reason: str) -> str:
        unsaved = self._unsaved.text()
        return f"{reason}; not saved: {unsaved}" if unsaved else reason

    def _save(self, stop: Callable[[], bool]) -> str | None:
        """What became of the model, for people; None when the job was ended meanwhile."""
        if not self._coordinator.has_trained:
            return "nothing was trained"
        if self._coordinator.ending is None and self._is_saved(stop):
            return f"nothing new since {self._unsaved.path}"

        deadline = self._clock() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        told = ""

        while True:
            try:
                saved = self._saver.save()
                return self._told(saved)
            except Exception as error:  # also an unforeseen one: the model is in memory only
                failure = str(error)
                gives_up = self._gives_up(error)

            left_s = deadline - self._clock() if gives_up else math.inf
            if left_s <= 0:
                return f"not saved: {self._unsaved.text() or 'the last updates'} ({failure})"

            if failure != told:
                told = failure
                tries = f"it is tried again for {left_s:.0f} s" if gives_up else "it is tried again"
                logger.error("the last save failed, %s: %s; %s", tries, failure, _WAY_OUT)

            if self._coordinator.wait_until_ended(stop, min(pause_s, left_s)) or stop():
                return None

            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _is_saved(self, stop: Callable[[], bool]) -> bool:
        """Whether a checkpoint has all, also what a program has pushed a moment ago."""
        if self._unsaved.is_behind or not self._coordinator.hear_all_ps(stop, _HEAR_S):
            return False

        return not self._unsaved.is_behind

    def _told(self, saved: SavedCheckpoint) -> str:
        if saved.is_whole:
            return f"saved {saved.path}"

        unsaved = self._unsaved.text() or "the last updates"
        return (
            f"not saved whole: {unsaved}; {saved.path} has what is left, rows are missing in it, "
            "and the next job does not start from it"
        )

    def _gives_up(self, error: Exception) -> bool:
        """Whether the job ends unsaved if the last save fails like this for too long."""
        ending = self._coordinator.ending
        if ending is None:
            return False

        succeeded, _ = ending
        return not succeeded or isinstance(error, NotReady | ShardLost)


class JobLeave:
    """Waits for the outcome, then has everybody leave. `run` belongs to one thread.

    With `stay_up` this process goes on serving after that.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        formation: Formation,
        journal: JournalKeeper,
        exit_request: ExitRequest,
        stay_up: bool,
    ) -> None:
        self._coordinator = coordinator
        self._formation = formation
        self._journal = journal
        self._exit_request = exit_request
        self._stay_up = stay_up

    def run(self, stopping: threading.Event) -> None:
        if not self._coordinator.wait_until_ended(stopping.is_set):
            return

        # First: once members are gone, only the journal says that the job has ended
        self._journal.flush()
        succeeded, reason = self._coordinator.outcome or (False, "stopped")
        steps = (
            lambda: self._formation.dismiss(reason),
            lambda: self._coordinator.dismiss(reason, _DISMISS_S),
            lambda: application.report_outcome(succeeded, reason),
        )

        for step in steps:
            # Whatever goes wrong with one, the others follow and this process ends
            guarded("telling everybody to leave", step)()

        if not self._stay_up:
            stopping.wait(_LINGER_S)
            self._exit_request.request(0 if succeeded else 1, reason)
