"""How a job ends: what was trained is saved first, then there is an outcome."""

import logging
import time
from collections.abc import Callable

from megalith.controller.coordinator import Coordinator
from megalith.controller.saves import Saver
from megalith.controller.unsaved import Unsaved
from megalith.wire.errors import NotReady, ShardLost

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_WAY_OUT = (
    "the parameter servers stay up; mend it, or end the job without saving: megalith ctl app kill"
)


class JobEnding:
    """Decides the outcome of a job. `run` belongs to one thread; `ask` may be called from any.

    A job whose workers are done is saved until that succeeds, however long it takes. A job that fails is saved too; but
    when a ps is missing for longer than `timeout_s`, there is nothing left to wait for and it ends without.
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

    def ask(self, succeeded: bool, reason: str, at_once: bool) -> None:
        """End the job: after a last save, or `at_once`. The first call decides the outcome and its reason."""
        if at_once:
            self._coordinator.end(succeeded, self._with_losses(reason))
        else:
            self._coordinator.begin_end(succeeded, reason)

    @property
    def said(self) -> str:
        """Why the job ends, while it is saved for the last time; empty when it is not."""
        if not self._coordinator.is_saving_last:
            return ""
        return (self._coordinator.ending or (True, "all workers finished"))[1]

    def run(self, stop: Callable[[], bool]) -> None:
        """Wait until the job has trained or is to end, save, and decide the outcome; returns when there is one."""
        if not self._coordinator.wait_until_saving(stop):
            return
        was_asked_for = self._coordinator.ending is not None
        said = self._save(stop)
        if said is not None and not was_asked_for:
            said = self._wait_for_workers(said, stop)
        if said is None:
            return
        succeeded, reason = self._coordinator.ending or (True, "all workers finished")
        parts = [reason, said]
        if succeeded:
            parts += self._coordinator.untrained_shares()
        self._coordinator.end(succeeded, "; ".join(parts))

    def _wait_for_workers(self, said: str, stop: Callable[[], bool]) -> str | None:
        """After the save the chief evaluates; returns what became of the model, or None as `_save` does."""
        self._coordinator.mark_saved()
        if not self._coordinator.wait_until_workers_finish(stop):
            return None
        # A worker that the chief did not wait for may have trained on.
        return self._save(stop) if self._unsaved.text() else said

    def _with_losses(self, reason: str) -> str:
        unsaved = self._unsaved.text()
        return f"{reason}; not saved: {unsaved}" if unsaved else reason

    def _save(self, stop: Callable[[], bool]) -> str | None:
        """What became of the model, for people; None when the job was ended meanwhile."""
        if not self._coordinator.has_trained:
            return "nothing was trained"
        if self._unsaved.path and not self._unsaved.text() and self._coordinator.ending is None:
            return f"nothing new since {self._unsaved.path}"
        deadline = self._clock() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        told = ""
        while True:
            try:
                saved = self._saver.save()
                return f"saved {saved.path}"
            except Exception as error:  # also an unforeseen one: the model is in memory only
                failure = str(error)
                is_hopeless = (
                    isinstance(error, NotReady | ShardLost) and self._coordinator.ending is not None
                )
            if is_hopeless and self._clock() > deadline:
                return f"not saved: {self._unsaved.text() or 'the last updates'} ({failure})"
            if failure != told:
                told = failure
                logger.error("the last save failed, it is tried again: %s; %s", failure, _WAY_OUT)
            if self._coordinator.wait_until_ended(stop, pause_s) or stop():
                return None
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
