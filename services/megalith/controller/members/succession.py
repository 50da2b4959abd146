"""What a controller takes over from the one before it."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from megalith.controller.members.journal import Ending, Journal, Outcome
from megalith.controller.members.losses import Held, Losses
from megalith.controller.members.roster import Seat
from megalith.controller.members.run import Run

logger = logging.getLogger(__name__)


class JobOutcome:
    """Nothing, then perhaps an ending that waits for the last save, then an outcome.

    Not thread-safe: the coordinator's lock guards it. `clock` gives Unix time.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.ending: Ending | None = None
        self.outcome: Outcome | None = None
        self.is_saved = False  # the last save is made, as far as it can be

    @property
    def is_decided(self) -> bool:
        return self.outcome is not None

    @property
    def is_near(self) -> bool:
        """The job has ended, or is to end after its last save."""
        return self.outcome is not None or self.ending is not None

    def begin(self, succeeded: bool, reason: str) -> bool:
        """Have the job end after a last save; False if its end is decided already."""
        if self.is_near:
            return False

        self.ending = Ending(succeeded, reason)
        logger.info("job ends after a last save succeeded=%s reason=%s", succeeded, reason)
        return True

    def decide(self, succeeded: bool, reason: str, step: int) -> bool:
        """End the job at that step; False if it has ended already."""
        if self.outcome is not None:
            return False

        self.outcome = Outcome(succeeded, reason, self._clock())
        logger.info("job ended succeeded=%s reason=%s step=%d", succeeded, reason, step)
        return True


class Succession:
    """The journal that was left, if one was. Not thread-safe: the coordinator's lock guards it.

    While the run of the journal is awaited, what it says is kept beside what happens now, and the
    journal of this controller has both: it may die too before anybody is back.
    """

    def __init__(
        self, left: Journal | None, run: Run, losses: Losses, job_outcome: JobOutcome
    ) -> None:
        self._left = left
        self._awaiting = left  # until it is known whether its run goes on
        self._run = run
        self._losses = losses
        self._job_outcome = job_outcome

        if left is not None:
            run.recover(left)
            job_outcome.outcome = left.outcome
            self._recall_pending(left)

    @property
    def is_from_nobody(self) -> bool:
        return self._left is None

    def _recall_pending(self, left: Journal) -> None:
        """Take up what the last controller had yet to compare with what comes back."""
        if not self._run.is_awaited:
            self._losses.run_gone(_held(left))
            return

        if left.run_gone is not None:
            self._losses.run_gone(left.run_gone)

        for index, member in enumerate(left.ps):
            if member.gone is not None:
                self._losses.recall_pending(index, member.gone)

    def last_step_of(self, seat: Seat) -> int:
        """The step of the job when that holder was last heard.

        A holder of the last run was at the step of that run.
        """
        step = self._run.global_step
        if self._left is not None and seat.incarnation in self._left.incarnations:
            step = max(step, self._left.global_step)

        return step

    def take_up(self) -> None:
        """If it is known by now whether the run of the journal goes on, act on it."""
        left = self._awaiting
        if left is None or self._run.is_awaited:
            return

        self._awaiting = None

        if self._run.has_recovered or self._run.id == left.run_id:
            self._losses.recall(left.rows_lost, left.losses, left.pushes_unknown)
            self._job_outcome.ending = self._job_outcome.ending or left.ending
        else:
            self._say_what_ended_with_it(left)

    def _say_what_ended_with_it(self, left: Journal) -> None:
        for holder in self._run.lifted_holds:
            self._losses.add(
                0,
                f"the last run was held by {holder.kind} ({holder.reason}). It did not go on, and "
                "nobody holds the run that begins now; stop it again if it is to wait",
            )

        if left.ending is not None and left.outcome is None:
            self._losses.add(
                0,
                f"the last run was to end ({left.ending.reason}). It did not go on, and the run "
                "that begins now trains; end it if it is not to",
            )

    def journal(self) -> Journal:
        """What the next controller must know if this one dies now."""
        run = self._run.journal()
        ending = self._job_outcome.ending
        counted = self._losses

        if self._awaiting is not None:
            ending = ending or self._awaiting.ending
            counted = counted.added_to(
                self._awaiting.rows_lost, self._awaiting.losses, self._awaiting.pushes_unknown
            )

        ps = []
        for index, member in enumerate(run.ps):
            ps.append(replace(member, gone=self._losses.pending(index)))

        return replace(
            run,
            ps=tuple(ps),
            rows_lost=counted.rows,
            losses=counted.said,
            pushes_unknown=counted.pushes_unknown,
            run_gone=self._losses.pending_run,
            ending=ending,
            outcome=self._job_outcome.outcome,
        )


def _held(left: Journal) -> Held:
    """What a run held that does not go on."""
    rows = 0
    pushes = 0

    for member in left.ps:
        if member.incarnation in left.routed:
            rows += member.rows
            pushes += max(0, member.pushes - member.pushes_saved)

    pending = [left.run_gone, *(member.gone for member in left.ps)]
    for gone in pending:
        if gone is not None:
            rows += gone.rows
            pushes += gone.pushes

    return Held(rows, left.global_step, pushes)
