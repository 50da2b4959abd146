"""Members come, report and leave."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace

from megalith.controller.members.barrier import HolderKind
from megalith.controller.members.core import ClusterCore
from megalith.controller.members.directives import Send, SessionEnd, ShutdownOrder
from megalith.controller.members.roster import (
    Registration,
    Role,
    Seat,
    decisive_of_ps,
    decisive_of_worker,
)
from megalith.errors import NotInCluster
from megalith.wire.reports import LeftOut, PsReport, WorkerReport

logger = logging.getLogger(__name__)


class Attendance(ClusterCore):
    """Who takes which seat, and what their reports change."""

    def join(self, registration: Registration, send: Send) -> int:
        """Seat a process and return its session.

        `send` gets every directive, the first being the current state.
        """
        self.check_current()
        with self._changed:
            # Who waits for a seat is heard first when this controller wakes up: before those whose
            # seats they are.
            if self._watched_at is not None:
                self._forgive_own_pause(self._clock())

            self._check_job(registration)
            self._run.check(registration)
            is_first_worker = not any(seat.is_connected for seat in self._roster.workers)

            before = self._roster.holder(registration)
            seat = self._roster.take(registration)
            is_new = before is None or before.incarnation != seat.incarnation
            if before is not None and is_new:
                self._note_loss(before)
                seat.examples_before += before.progress.examples
                seat.left_out_before = before.left_out

            self._sessions.hand_over(seat)
            self._run.hear(registration, is_first_worker)
            if registration.role is Role.WORKER:
                seat.progress = _begun_again(seat.progress, is_new)

            self._publish_change()
            session = self._sessions.open(seat, send)
            self._has_had_members = True

            send(self._state())
            logger.info("joined role=%s index=%d address=%s", seat.role, seat.index, seat.address)
            self._wake_journal()
            return session

    def _note_loss(self, gone: Seat) -> None:
        """Another process takes the seat of this one."""
        pushes = max(0, gone.load.pushes - gone.pushes_saved)
        load = replace(gone.load, pushes=pushes)

        step = self._succession.last_step_of(gone)
        silent_s = self._roster.unheard_s(gone)
        self._losses.ps_gone(gone.index, load, step, silent_s)

    def leave(self, session: int) -> None:
        """The stream of that session is over.

        Leaving twice, or after a replacement, changes nothing.
        """
        with self._changed:
            seat = self._sessions.close(session)
            if seat is None:
                return

            seat.is_connected = False
            is_expected = seat.progress.is_finished or self._job_outcome.is_decided
            logger.log(
                logging.INFO if is_expected else logging.WARNING,
                "left role=%s index=%d address=%s",
                seat.role,
                seat.index,
                seat.address,
            )

            self._publish_change()

    def report_worker(self, session: int, progress: WorkerReport) -> None:
        with self._changed:
            seat = self._heard(session)
            if seat is None:
                return

            if not progress.has_begun:
                before = seat.progress
                progress = replace(
                    progress,
                    position=before.position,
                    total_batches=before.total_batches,
                    cursor=before.cursor,
                )

            self._run.check_progress(progress.global_step, progress.initialized_epoch)
            self._losses.worker_reports(
                seat.index, seat.progress.pushes_unknown, progress.pushes_unknown
            )
            if progress.is_blocked and not seat.progress.is_blocked:
                self._wake_journal()  # at a barrier the journal is exact

            self._run.pieces.report(seat.incarnation, progress.pieces)
            has_news = decisive_of_worker(progress) != decisive_of_worker(seat.progress)
            seat.progress = progress
            is_chief = seat.index == 0
            self._run.advance(progress.global_step, progress.initialized_epoch if is_chief else 0)
            if has_news:
                self._publish_change()

    def has_reported(self, session: int, order: int) -> None:
        """A worker says that its last report was made after it got that order."""
        with self._changed:
            seat = self._heard(session)
            if seat is not None:
                seat.report_order = max(seat.report_order, min(order, self._newest_report_order))
                self._changed.notify_all()

    def report_ps(self, session: int, load: PsReport) -> None:
        with self._changed:
            seat = self._heard(session)
            if seat is None:
                return

            has_news = decisive_of_ps(load) != decisive_of_ps(seat.load)
            seat.load = load
            seat.num_reports += 1
            self._dropped_tables.update(load.dropped_tables)
            if load.restored is not None:
                self._losses.ps_ready(seat.index, load.restored, counts_steps=self.num_workers > 0)

            if self._hold_if_ill(seat) or has_news:
                self._publish_change()
            else:
                self._changed.notify_all()  # somebody may wait for just a report

    def _hold_if_ill(self, seat: Seat) -> bool:
        """Hold training while a ps complains; whether it is held since now. See `HealthCheck`."""
        reason = self._health.reason_to_hold(seat, self._roster.ps)
        if not reason or self._run.is_held_by(HolderKind.HEALTH):
            return False

        held = self._run.hold("", reason, HolderKind.HEALTH)
        logger.error(
            "training is held id=%d: %s; `megalith ctl resume` lets it go on", held.id, reason
        )
        return True

    def renew(self, session: int, is_last: bool) -> bool:
        """A member asks for its lease to be renewed, or gives it back.

        False if its seat is another's by now.
        """
        self._check_current_lately()
        with self._changed:
            seat = self._heard(session)
            if seat is None:
                return False

            seat.has_lease = not is_last
            return True

    def checkpoint_saved(
        self, path: str, at_s: float, pushes: Mapping[int, int] | None = None
    ) -> None:
        """A checkpoint is complete, which a ps that is replaced will start from.

        It was begun at `at_s`, Unix seconds: of what was trained since then it may have nothing.
        `pushes` are, by session, those that a ps had applied before it wrote its files.
        """
        with self._changed:
            self._losses.saved(path, at_s)
            for session, number in (pushes or {}).items():
                seat = self._sessions.seat_of(session)
                if seat is not None:
                    seat.pushes_saved = number

            self._wake_journal()

    def check(self, registration: Registration) -> None:
        """Refuse a member of another job or run before anything is taken from it."""
        with self._changed:
            self._check_job(registration)
            self._run.check(registration)

    def _check_job(self, registration: Registration) -> None:
        """NotInCluster for a member of another job."""
        if registration.job not in ("", self.job):
            raise NotInCluster(
                f"{registration.name} belongs to job {registration.job}, this "
                f"controller runs {self.job}; correct --controller or --job"
            )

    def _heard(self, session: int) -> Seat | None:
        seat = self._sessions.seat_of(session)
        if seat is not None:
            self._roster.hear(seat)

        return seat

    def is_alive(self, session: int) -> bool:
        """Whether that session still holds its seat."""
        with self._changed:
            return session in self._sessions

    def index_of(self, session: int) -> int | None:
        with self._changed:
            seat = self._sessions.seat_of(session)
            return seat.index if seat else None

    @property
    def knows_nothing(self) -> bool:
        """Nothing was told to this controller that the next one must know.

        Nobody has ever joined, nobody holds or ends the job, nothing is said to be lost, and no
        controller before this one has left a journal.
        """
        with self._changed:
            if self._has_had_members or not self._succession.is_from_nobody:
                return False

            is_told = self._job_outcome.is_near or self._losses.said
            return not self._run.barrier.holders and not is_told

    # --- time ---

    def watch(self) -> None:
        """Look at the time: let go of members that are silent, and see which suspects have died."""
        self._look_for_survivors()
        with self._changed:
            self._forgive_own_pause(self._clock())
            silent = self._sessions.by_seat(*self._roster.silent())

        for session, send in silent.items():
            self.leave(session)
            send(SessionEnd())  # should it wake up, it learns that its seat is gone

        with self._changed:
            has_shares = not self._run.pieces.is_in_use  # pieces of a lost worker go to others
            if has_shares and not self._job_outcome.is_decided:
                for seat in self._roster.given_up_workers():
                    self._losses.share_given_up(seat.index, seat.incarnation, seat.lost_share())

            self._publish_change()

    def _look_for_survivors(self) -> None:
        """Wait on for members of the journal that still listen.

        They need time to leave a controller that hangs, and to come here.
        """
        with self._changed:
            is_early = self._clock() < self._survivors_until
            addresses = self._run.awaited_addresses() if is_early else ()

        if addresses:
            alive = self._find_alive(addresses)
            with self._changed:
                self._run.go_on_waiting_for(alive)

    def _forgive_own_pause(self, now: float) -> None:
        """A controller that did not run heard nobody: what looks like their silence was its own."""
        last = now if self._watched_at is None else self._watched_at
        pause_s = now - last
        self._watched_at = now

        if pause_s > min(self._patience.silence_s, self._patience.suspect_s) / 2:
            logger.warning(
                "this controller did not run for %.1f s; members are given that time", pause_s
            )
            self._roster.forgive(pause_s)

    # --- the end of sessions ---

    def dismiss(self, reason: str, timeout_s: float) -> None:
        """Tell every member to exit and wait until all have left, or the time is over."""
        with self._changed:
            self._sessions.tell(ShutdownOrder(reason))
            if self._changed.wait_for(lambda: len(self._sessions) == 0, timeout_s):
                return

            left = [seat for seat in self._roster.seats if seat.is_connected]

        for seat in left:
            logger.warning(
                "%s %s was told to exit and is still here after %.0f s; end it by hand if it stays",
                seat.name,
                seat.process,
                timeout_s,
            )

    def end_sessions(self) -> None:
        """End every stream; members will look for another controller."""
        with self._changed:
            self._sessions.tell(SessionEnd())


def _begun_again(progress: WorkerReport, is_new: bool) -> WorkerReport:
    """What counts of a worker's last report after it has joined, perhaps as another process."""
    pushes_unknown = 0 if is_new else progress.pushes_unknown
    examples = 0 if is_new else progress.examples
    left_out = LeftOut() if is_new else LeftOut.of(progress)
    return replace(
        progress,
        examples=examples,
        is_blocked=False,
        barrier_id=0,
        is_finished=False,
        is_trained=False,
        is_share_over=False,
        pushes_unknown=pushes_unknown,
        **asdict(left_out),
    )
