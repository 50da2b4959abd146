"""The truth about the cluster: who is in it, the routing map, the barrier, the step, the phase.

FORMING --all ps ready--> INITIALIZING --tables created--> RUNNING --done, saved--> FINISHED
   ^                          |  ^                            |
   '--- ps dead or replaced --'  '- new ps ready: epoch + 1 ---'
"""

import logging
from collections.abc import Callable
from functools import partial

from megalith.controller.members.attendance import Attendance
from megalith.controller.members.barrier import BarrierState, HolderKind
from megalith.controller.members.core import ClusterCore
from megalith.controller.members.directives import MeasureOrder, Phase, ReportOrder, SaveShard
from megalith.controller.members.handing_out import HandingOut
from megalith.controller.members.roster import Role, Standing
from megalith.errors import NotReady
from megalith.wire.routing import ps_names

logger = logging.getLogger(__name__)

_BACK_S = 10.0  # longer than a ps is a suspect (--suspect-s), and than small ones restore


class JobCourse(ClusterCore):
    """Orders to members, and the way from training to the outcome."""

    def order_save(self, order: SaveShard) -> list[int]:
        """Tell every ps to write its shard; returns their sessions.

        NotReady unless all of them are ready.
        """
        self.check_current()
        with self._changed:
            missing = set(self._roster.missing_ps())
            for seat in self._roster.ps:
                if not seat.is_connected:
                    missing.add(seat.index)

            # A run that ends because of what a ps has restored gets no map any more. What the
            # others have trained is saved all the same.
            is_routed = self._run.is_routed or self._job_outcome.ending is not None
            if missing:
                raise NotReady(f"cannot save: waiting for {ps_names(sorted(missing))}")
            if not is_routed:
                raise NotReady("cannot save: the cluster is forming")
            if self._phase() is Phase.INITIALIZING and not self._is_chief_lost_for_good():
                raise NotReady("cannot save: the chief has not created all tables yet")

            return self._sessions.tell(order, Role.PS)

    def wait_for_returning_ps(self) -> None:
        """Wait for those whose session was lost a moment ago, and for those that restore.

        After a controller was started again its ps come back one after the other. One that was
        replaced restores first, and then the chief creates what it lacks.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_a_ps_returning(), _BACK_S)

    def _is_a_ps_returning(self) -> bool:
        missing = self._roster.missing_ps()
        for seat in self._roster.ps:
            standing = self._roster.standing(seat)
            is_here = standing is Standing.ALIVE
            if standing is Standing.SUSPECT or (is_here and seat.index in missing):
                return True

        is_chief_awaited = self._phase() is Phase.INITIALIZING
        return is_chief_awaited and self._roster.is_reachable(self._roster.workers[0])

    def _is_chief_lost_for_good(self) -> bool:
        """Whether nobody will create what a replaced ps lacks: the job ends, its chief is dead.

        What all servers hold is still worth a checkpoint. Whether a table is missing is seen in
        what they write.
        """
        chief = self._roster.workers[0]
        is_ending = self._job_outcome.ending is not None
        return is_ending and not self._roster.is_reachable(chief)

    def order_measurement(self, order: MeasureOrder) -> list[int]:
        """Tell every worker that is here to measure; returns their sessions."""
        with self._changed:
            return self._sessions.tell(order, Role.WORKER)

    def ask_for_reports(self, timeout_s: float) -> list[int]:
        """Have every worker that is here report now, and wait for it.

        Gives back the indices of those that did not within `timeout_s`: what is known of them is
        as old as their last report.
        """
        with self._changed:
            self._newest_report_order += 1
            order = self._newest_report_order
            sessions = self._sessions.tell(ReportOrder(order), Role.WORKER)

            def silent() -> list[int]:
                seats = [self._sessions.seat_of(session) for session in sessions]
                return [seat.index for seat in seats if seat and seat.report_order < order]

            self._changed.wait_for(lambda: not silent(), timeout_s)
            late = silent()

        if late:
            names = ", ".join(f"worker-{index}" for index in late)
            logger.warning(
                "%s did not report within %.0f s; the last report counts", names, timeout_s
            )

        return late

    def hear_all_ps(self, stop: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until every ps that is here, or may come back, has said what it has applied by now.

        It reports once in a heartbeat. The next report may have been on its way already, so this
        waits for the one after it. False if one says nothing for so long, or if `stop()` holds.
        """
        with self._changed:
            before = [seat.num_reports for seat in self._roster.ps]

            def are_heard() -> bool:
                return all(
                    seat.num_reports >= number + 2 or not self._roster.is_reachable(seat)
                    for seat, number in zip(self._roster.ps, before, strict=True)
                )

            self._changed.wait_for(lambda: stop() or are_heard(), timeout_s)
            return are_heard()

    def wait_until_saving(self, stop: Callable[[], bool]) -> bool:
        """Block until the last save is due (True): nobody trains any more, or the job is to end.

        False when it was ended, or `stop()` holds.
        """
        return self._wait_for_the_end(stop, self._roster.is_trained)

    def wait_until_workers_finish(self, stop: Callable[[], bool]) -> bool:
        """Block until all workers are done or the job is to end (True).

        False when it was ended, or `stop()` holds.
        """
        return self._wait_for_the_end(stop, self._roster.are_workers_done)

    def _wait_for_the_end(self, stop: Callable[[], bool], is_reached: Callable[[], bool]) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: stop() or self._job_outcome.is_near or is_reached())
            return not self._job_outcome.is_decided and not stop()

    def mark_saved(self) -> None:
        """The last save is made, as far as it can be: the chief may evaluate."""
        with self._changed:
            self._job_outcome.is_saved = True
            self._publish_change()

    def begin_end(self, succeeded: bool, reason: str) -> None:
        """Have the job end after a last save. The first call decides; later ones change nothing."""
        with self._changed:
            self._begin_end(succeeded, reason)

        self._flush_journal()

    def end(self, succeeded: bool, reason: str) -> None:
        """Decide the outcome. The first call decides; later ones change nothing."""
        with self._changed:
            self._end(succeeded, reason)

        self._flush_journal()

    @property
    def ending(self) -> tuple[bool, str] | None:
        """(succeeded, reason) of a job that is to end after a last save."""
        with self._changed:
            ending = self._job_outcome.ending

        return None if ending is None else (ending.succeeded, ending.reason)

    @property
    def outcome(self) -> tuple[bool, str] | None:
        """(succeeded, reason) of a job that has ended."""
        with self._changed:
            outcome = self._job_outcome.outcome

        return None if outcome is None else (outcome.succeeded, outcome.reason)

    @property
    def is_saving_last(self) -> bool:
        """Whether the job is over but for its last save."""
        with self._changed:
            outcome = self._job_outcome
            if outcome.is_saved or outcome.is_decided:
                return False

            return outcome.ending is not None or self._roster.is_trained()

    def untrained_shares(self) -> list[str]:
        """What a job that ends well has left out: a sentence for each unfinished worker.

        Of an input that is handed out: one for all of it.
        """
        with self._changed:
            book = self._run.pieces
            if book.is_in_use:
                return book.untrained()

            return [seat.lost_share() for seat in self._roster.workers if seat.has_untrained_share]

    def early_ends(self) -> dict[str, str]:
        """Why hooks have ended shares, by the name of the worker."""
        with self._changed:
            return {
                seat.name: seat.progress.stop_reason
                for seat in self._roster.workers
                if seat.progress.stop_reason
            }

    def wait_until_ended(self, stop: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Block until the outcome is decided (True).

        False when `stop()` holds or the time is over.
        """
        with self._changed:
            self._changed.wait_for(lambda: stop() or self._job_outcome.is_decided, timeout_s)
            return self._job_outcome.is_decided


class Holding(ClusterCore):
    """Holds on training by operators, the platform, saves and stops by file.

    A hold is on disk when its call returns, so it outlives this controller. If it cannot be
    written, training is held all the same, and the journal's `error` says that it would not.
    """

    def place_barrier(
        self, action: str = "", reason: str = "", kind: HolderKind = HolderKind.OPERATOR
    ) -> BarrierState:
        """Hold training until this holder lets go, whoever else holds it.

        BarrierAlreadyPlaced if it holds already.
        """
        self.check_current()
        reason = reason or kind.value
        with self._changed:
            held = self._run.hold(action, reason, kind)
            logger.info(
                "barrier placed id=%d by=%s action=%r reason=%s", held.id, kind, action, reason
            )
            self._publish_change()

        self._flush_journal()
        return held

    def remove_barrier(self, kind: HolderKind = HolderKind.OPERATOR) -> None:
        """End that holder's hold; an operator also ends that of the health check, for a while.

        Others hold on.
        """
        self.check_current()
        with self._changed:
            if kind is HolderKind.OPERATOR:
                self._run.lift(kind, HolderKind.HEALTH)
                self._health.tolerate()
            else:
                self._run.lift(kind)

            self._publish_change()

        self._flush_journal()

    def hold(
        self, action: str, reason: str, timeout_s: float, kind: HolderKind = HolderKind.SAVE
    ) -> Callable[[], None]:
        """Hold training and wait, at most `timeout_s`, until no worker can take a step.

        Returns how to let go. Nobody but the caller lets go of this hold, and letting go leaves the
        holds of others.
        """
        hold_id = self.place_barrier(action, reason, kind).id
        with self._changed:
            if not self._changed.wait_for(lambda: not self._moving_workers(), timeout_s):
                logger.warning(
                    "workers not blocked after %.0f s: %s; going on",
                    timeout_s,
                    self._moving_workers(),
                )

        return partial(self._let_go, hold_id)

    def _let_go(self, hold_id: int) -> None:
        with self._changed:
            self._run.let_go(hold_id)
            self._publish_change()

        self._flush_journal()

    def moving_workers(self) -> tuple[int, ...]:
        """Workers that may take a step although training is held: they have not come to it yet."""
        with self._changed:
            return tuple(self._moving_workers())

    def _moving_workers(self) -> list[int]:
        return self._roster.moving_workers(self._run.barrier)

    def block_status(self) -> tuple[list[int], list[int]]:
        """(blocked, unblocked) worker indices; see GetBlockStatusResponse."""
        with self._changed:
            blocked = self._roster.blocked_workers(self._run.barrier)
            everybody = [seat.index for seat in self._roster.workers]

        return blocked, [index for index in everybody if index not in blocked]


class Coordinator(Attendance, HandingOut, Holding, JobCourse):
    """Every decision of the controller about membership, made under one lock; see `ClusterCore`."""
