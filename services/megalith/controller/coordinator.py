"""The truth about the cluster: who is in it, the routing map, the barrier, the step, the phase.

FORMING --all ps ready--> INITIALIZING --chief created tables--> RUNNING --all workers done, saved--> FINISHED
   ^                          |  ^                                  |
   '--- ps dead or replaced --'  '---- new ps ready: epoch + 1 -----'
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from megalith.controller.barrier import BarrierState, HolderKind
from megalith.controller.directives import (
    ClusterState,
    MeasureOrder,
    Phase,
    SaveOrder,
    Send,
    SessionEnd,
    ShutdownOrder,
)
from megalith.controller.journal import Journal, Outcome
from megalith.controller.losses import Held, Loss, Losses
from megalith.controller.roster import (
    Patience,
    Place,
    PsLoad,
    Registration,
    Role,
    Roster,
    Standing,
    WorkerProgress,
)
from megalith.controller.run import Run
from megalith.controller.sessions import Sessions
from megalith.runtime.manifest import Restored
from megalith.wire.errors import NotInCluster, NotReady
from megalith.wire.routing import Routing, check_run

logger = logging.getLogger(__name__)

_SURVIVORS_S = (
    60.0  # a member notices after 30 s that its controller is paused: the keep-alive of its channel
)


class RestoreFault(Protocol):
    """Why parameter servers that are ready must not go on together; see `StartPoint.fault`."""

    def __call__(self, restored: Sequence[Restored | None], *, is_first: bool) -> str: ...


class Coordinator:
    """Every decision of the controller about membership, made under one lock.

    The lock guards everything here; the condition on it is notified at each change. `send` functions of sessions are
    called under it, so each session sees directives in the order of the decisions; they only enqueue. `wake_journal`
    and `restore_fault` are called under it too; `flush_journal` is called without it and returns once the newest state
    is on disk. A fault of what servers have restored ends the job before workers hear of them.
    `check_current` raises once a newer controller serves the job: this one takes nobody in and decides nothing then.
    `find_alive` says which of some addresses somebody listens at; it is called without the lock.

    With the `journal` of a controller that died, the run may be the one that it tells of; see `Run`.
    """

    def __init__(
        self,
        num_ps: int,
        num_workers: int,
        *,
        patience: Patience,
        job: str = "",
        checkpoint_step: int = 0,
        journal: Journal | None = None,
        ended_runs: Collection[str] = (),
        wake_journal: Callable[[], None] = lambda: None,
        flush_journal: Callable[[], None] = lambda: None,
        restore_fault: RestoreFault = lambda restored, *, is_first: "",
        check_current: Callable[[], None] = lambda: None,
        find_alive: Callable[[Sequence[str]], Sequence[str]] = lambda addresses: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self._restore_fault = restore_fault
        self._clock, self._patience = clock, patience
        self._wake_journal, self._flush_journal = wake_journal, flush_journal
        self.check_current = check_current
        self._find_alive = find_alive
        self._survivors_until = clock() + _SURVIVORS_S
        self._changed = threading.Condition()
        self._roster = Roster(num_ps, num_workers, patience, clock)
        self._run = Run(job, self._roster, checkpoint_step, ended_runs)
        self._sessions = Sessions()
        self._told: tuple[object, ...] = ()  # what the sessions were last told, in short
        self._ending: tuple[bool, str] | None = (
            None  # the outcome that is to be, once the last save is made
        )
        self._is_saved = False
        self._outcome: tuple[bool, str] | None = None
        self._outcome_at_s = 0.0
        self._losses = Losses()
        self._given_up: set[tuple[int, str]] = (
            set()
        )  # (index, incarnation) of workers whose share was given up
        self._unhealthy: set[tuple[int, str]] = (
            set()
        )  # (index, incarnation) of ps whose complaint was logged
        self._tolerated_until = (
            0.0  # until then those complaints hold nobody: an operator has resumed
        )
        self._watched_at: float | None = None
        if journal is not None:
            self._run.recover(journal)
        if journal is not None and journal.outcome is not None:
            self._outcome = (journal.outcome.succeeded, journal.outcome.reason)
            self._outcome_at_s = journal.outcome.at_s
        if journal is not None and not self._run.is_awaited:
            self._losses.run_gone(_held(journal))
        self._left = journal
        self._journal = journal  # until it is known whether its run goes on

    # --- sessions ---

    def join(self, registration: Registration, send: Send) -> int:
        """Seat a process and return its session; `send` gets every directive, the first being the current state."""
        self.check_current()
        with self._changed:
            self._check_job(registration)
            self._run.check(registration)
            is_first_worker = not any(place.is_connected for place in self._roster.workers)
            before = self._roster.holder(registration)
            place = self._roster.take(registration)
            if before is not None and before.incarnation != place.incarnation:
                self._note_loss(before)
            self._sessions.hand_over(place)
            self._run.hear(registration, is_first_worker)
            if registration.role is Role.WORKER:
                place.progress = replace(
                    place.progress,
                    is_blocked=False,
                    barrier_id=0,
                    is_finished=False,
                    is_trained=False,
                )
                if before is None or before.incarnation != place.incarnation:
                    place.progress = replace(place.progress, pushes_unknown=0)
            self._settle()
            session = self._sessions.open(place, send)
            send(self._state())
            logger.info(
                "joined role=%s index=%d address=%s", place.role, place.index, place.address
            )
            self._wake_journal()
            return session

    def _note_loss(self, gone: Place) -> None:
        """Another process takes the place of this one. One of the last run was at the step of that run."""
        pushes = gone.load.pushes - gone.pushes_saved
        is_of_last_run = self._left is not None and gone.incarnation in self._left.incarnations
        step = max(
            self._run.global_step, self._left.global_step if self._left and is_of_last_run else 0
        )
        silent_s = self._roster.unheard_s(gone)
        self._losses.ps_gone(gone.index, replace(gone.load, pushes=pushes), step, silent_s)

    def leave(self, session: int) -> None:
        """The stream of that session is over. Leaving twice, or after a replacement, changes nothing."""
        with self._changed:
            place = self._sessions.close(session)
            if place is None:
                return
            place.is_connected = False
            logger.log(
                logging.INFO if place.progress.is_finished or self._outcome else logging.WARNING,
                "left role=%s index=%d address=%s",
                place.role,
                place.index,
                place.address,
            )
            self._settle()

    def watch(self) -> None:
        """Look at the time: let go of members that are silent, and draw the consequences of suspects that died."""
        self._look_for_survivors()
        with self._changed:
            self._forgive_own_pause(self._clock())
            silent = self._sessions.by_place(*self._roster.silent())
        for session, send in silent.items():
            self.leave(session)
            send(SessionEnd())  # should it wake up, it learns that its place is gone
        with self._changed:
            self._give_up_shares()
            self._settle()

    def _give_up_shares(self) -> None:
        """Say of each worker that was lost for too long how much of its share nobody trains."""
        for place in self._roster.given_up_workers():
            if (place.index, place.incarnation) not in self._given_up and self._outcome is None:
                self._given_up.add((place.index, place.incarnation))
                self._losses.add(0, f"{place.lost_share()}; start it again to train the rest")

    def _look_for_survivors(self) -> None:
        """Give members of the journal that still listen the time to leave a controller that hangs, and to come here."""
        with self._changed:
            addresses = (
                self._run.awaited_addresses() if self._clock() < self._survivors_until else ()
            )
        if addresses:
            alive = self._find_alive(addresses)
            with self._changed:
                self._run.go_on_waiting_for(alive)

    def _forgive_own_pause(self, now: float) -> None:
        """A controller that did not run heard nobody: what looks like their silence was its own."""
        pause_s = now - (now if self._watched_at is None else self._watched_at)
        self._watched_at = now
        if pause_s > min(self._patience.silence_s, self._patience.suspect_s) / 2:
            logger.warning(
                "this controller did not run for %.1f s; members are given that time", pause_s
            )
            self._roster.forgive(pause_s)

    def report_worker(self, session: int, progress: WorkerProgress) -> None:
        with self._changed:
            place = self._heard(session)
            if place is None:
                return
            if not progress.has_begun:
                before = place.progress
                progress = replace(
                    progress, position=before.position, total_batches=before.total_batches
                )
            self._run.check_progress(progress.global_step, progress.initialized_epoch)
            self._losses.worker_reports(
                place.index, place.progress.pushes_unknown, progress.pushes_unknown
            )
            if progress.is_blocked and not place.progress.is_blocked:
                self._wake_journal()  # at a barrier the journal is exact
            has_news = progress.standing != place.progress.standing
            place.progress = progress
            is_chief = place.index == 0
            self._run.advance(progress.global_step, progress.initialized_epoch if is_chief else 0)
            if has_news:
                self._settle()

    def report_ps(self, session: int, load: PsLoad) -> None:
        with self._changed:
            place = self._heard(session)
            if place is None:
                return
            has_news = load.standing != place.load.standing
            place.load = load
            if load.restored is not None:
                self._losses.ps_ready(place.index, load.restored, counts_steps=self.num_workers > 0)
            has_news = self._look_at_health(place) or has_news
            if has_news:
                self._settle()

    def renew(self, session: int, is_last: bool) -> bool:
        """A ps asks for its lease to be renewed, or gives it back; False if its place is another's by now."""
        with self._changed:
            place = self._heard(session)
            if place is None:
                return False
            place.has_lease = not is_last
            return True

    def is_alive(self, session: int) -> bool:
        """Whether that session still holds its place."""
        with self._changed:
            return session in self._sessions

    @property
    def run_id(self) -> str:
        with self._changed:
            return self._run.id

    @property
    def has_members(self) -> bool:
        with self._changed:
            return len(self._sessions) > 0

    def check(self, registration: Registration) -> None:
        """Refuse a member of another job or run before anything is taken from it."""
        with self._changed:
            self._check_job(registration)
            self._run.check(registration)

    def _check_job(self, registration: Registration) -> None:
        """NotInCluster for a member of another job."""
        if registration.job not in ("", self.job):
            raise NotInCluster(
                f"{registration.role} {registration.index} belongs to job {registration.job}, this controller runs "
                f"{self.job}; correct --controller or --job"
            )

    def _heard(self, session: int) -> Place | None:
        place = self._sessions.place_of(session)
        if place is not None:
            self._roster.hear(place)
        return place

    def _look_at_health(self, place: Place) -> bool:
        """Hold training while a ps complains, and say whether it is held since now; each complaint is logged once.

        A resume lifts the hold, and training goes on for `health_resume_s` although the same ps still complain. Then,
        or as soon as another one complains, it is held again.
        """
        key = (place.index, place.incarnation)
        if not place.load.complaint:
            self._unhealthy.discard(key)
            return False
        if key not in self._unhealthy:
            self._unhealthy = {(ps.index, ps.incarnation) for ps in self._roster.ps} & (
                self._unhealthy | {key}
            )
            self._tolerated_until = self._clock()
            self._log_complaints()
        is_tolerated = self._clock() < self._tolerated_until
        if is_tolerated or self._run.barrier.is_held_by(HolderKind.HEALTH):
            return False
        reason = f"ps {place.index}: {place.load.complaint}"
        placed = self._run.barrier.place(reason=reason, kind=HolderKind.HEALTH)
        logger.error(
            "training is held id=%d: %s; `megalith ctl resume` lets it go on", placed.id, reason
        )
        return True

    def _log_complaints(self) -> None:
        ill = [place for place in self._roster.ps if place.is_connected and place.load.complaint]
        logger.error(
            "PS are not healthy:\n%s",
            "\n".join(f"ps {place.index}: {place.load.complaint}" for place in ill),
        )

    # --- operators ---

    def place_barrier(
        self, action: str = "", reason: str = "", kind: HolderKind = HolderKind.OPERATOR
    ) -> BarrierState:
        """Hold training until this holder lets go, whoever else holds it. BarrierAlreadyPlaced if it holds already."""
        self.check_current()
        with self._changed:
            placed = self._run.barrier.place(action, reason or kind.value, kind)
            logger.info(
                "barrier placed id=%d by=%s action=%r reason=%s",
                placed.id,
                kind,
                action,
                reason or kind,
            )
            self._settle()
        self._flush_journal()
        return placed

    def remove_barrier(self, kind: HolderKind = HolderKind.OPERATOR) -> None:
        """End that holder's hold; an operator also ends that of the health check, for a while. Others hold on."""
        self.check_current()
        lifted = (kind, HolderKind.HEALTH) if kind is HolderKind.OPERATOR else (kind,)
        with self._changed:
            before = self._run.barrier.state
            self._run.barrier.remove(*lifted)
            if HolderKind.HEALTH in lifted:
                self._tolerated_until = self._clock() + self._patience.health_resume_s
            self._log_let_go(before)
            self._settle()
        self._flush_journal()

    def hold(
        self, action: str, reason: str, timeout_s: float, kind: HolderKind = HolderKind.SAVE
    ) -> Callable[[], None]:
        """Hold training and wait, at most `timeout_s`, until no worker can take a step; returns how to let go.

        Nobody but the caller lets go of this hold, and letting go leaves the holds of others.
        """
        hold_id = self.place_barrier(action, reason, kind).id
        with self._changed:
            if not self._changed.wait_for(lambda: not self._moving_workers(), timeout_s):
                logger.warning(
                    "workers not blocked after %.0f s: %s; going on",
                    timeout_s,
                    self._moving_workers(),
                )
        return lambda: self._let_go(hold_id)

    def _moving_workers(self) -> list[int]:
        return self._roster.moving_workers(self._run.barrier.state)

    def _let_go(self, hold_id: int) -> None:
        with self._changed:
            before = self._run.barrier.state
            self._run.barrier.let_go(hold_id)
            self._log_let_go(before)
            self._settle()
        self._flush_journal()

    def _log_let_go(self, before: BarrierState) -> None:
        now = self._run.barrier.state
        if now == before:
            return
        left = ", ".join(holder.kind for holder in now.holders) or "nobody"
        logger.info(
            "barrier let go id=%d step=%d still held by=%s", before.id, self._run.global_step, left
        )

    def block_status(self) -> tuple[list[int], list[int]]:
        """(blocked, unblocked) worker indices; see GetBlockStatusResponse."""
        with self._changed:
            blocked = self._roster.blocked_workers(self._run.barrier.state)
            return blocked, [
                place.index for place in self._roster.workers if place.index not in blocked
            ]

    @property
    def global_step(self) -> int:
        with self._changed:
            return self._run.global_step

    def current_routing(self, run_id: str = "") -> Routing:
        """The map of the present run, for a client that belongs to `run_id`; empty = it belongs to none yet."""
        with self._changed:
            if self._run.is_awaited:
                raise NotReady(
                    "whether the run of the last controller goes on is not known yet; retry in a moment"
                )
            check_run(run_id or self._run.id, self._run.id, "the controller")
            if self._run.routing is None:
                raise NotReady(
                    f"the cluster is forming: waiting for ps {self._roster.missing_ps()}"
                )
            return self._run.routing

    def state(self) -> ClusterState:
        with self._changed:
            return self._state()

    def places(self) -> list[tuple[Place, Standing, float]]:
        """Copies of all places, with what is made of each and the seconds since it was last heard."""
        with self._changed:
            return [
                (replace(place), self._roster.standing(place), self._roster.unheard_s(place))
                for place in self._roster.places
            ]

    # --- saves and the end ---

    def order_save(self, order: SaveOrder) -> list[int]:
        """Tell every ps to write its shard; returns their sessions. NotReady unless all of them are ready."""
        self.check_current()
        with self._changed:
            missing = {
                *self._roster.missing_ps(),
                *(p.index for p in self._roster.ps if not p.is_connected),
            }
            if missing or not self._run.is_routed:
                raise NotReady(f"cannot save: waiting for ps {sorted(missing)}")
            if self._phase() is Phase.INITIALIZING:
                raise NotReady("cannot save: the chief has not created all tables yet")
            return self._sessions.tell(order, Role.PS)

    def order_measurement(self, order: MeasureOrder) -> list[int]:
        """Tell every worker that is here to measure; returns their sessions."""
        with self._changed:
            return self._sessions.tell(order, Role.WORKER)

    def index_of(self, session: int) -> int | None:
        with self._changed:
            place = self._sessions.place_of(session)
            return place.index if place else None

    def wait_until_saving(self, stop: Callable[[], bool]) -> bool:
        """Block until the last save is due (True): nobody trains any more, or the job is to end.

        False when it was ended, or `stop()` holds.
        """
        return self._wait_for_the_end(stop, self._roster.is_trained)

    def wait_until_workers_finish(self, stop: Callable[[], bool]) -> bool:
        """Block until all workers are done or the job is to end (True), or it was ended or `stop()` holds (False)."""
        return self._wait_for_the_end(stop, self._roster.are_workers_done)

    def _wait_for_the_end(self, stop: Callable[[], bool], is_reached: Callable[[], bool]) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    stop() or self._outcome is not None or self._ending is not None or is_reached()
                )
            )
            return self._outcome is None and not stop()

    def mark_saved(self) -> None:
        """The last save is made, as far as it can be: the chief may evaluate."""
        with self._changed:
            self._is_saved = True
            self._settle()

    def begin_end(self, succeeded: bool, reason: str) -> None:
        """Have the job end after a last save. The first call decides; later ones change nothing."""
        with self._changed:
            if self._outcome is None and self._ending is None:
                self._ending = (succeeded, reason)
                logger.info("job ends after a last save succeeded=%s reason=%s", succeeded, reason)
                self._settle()

    @property
    def ending(self) -> tuple[bool, str] | None:
        """(succeeded, reason) of a job that is to end after a last save."""
        with self._changed:
            return self._ending

    @property
    def is_saving_last(self) -> bool:
        """Whether the job is over but for its last save."""
        with self._changed:
            is_due = self._ending is not None or self._roster.is_trained()
            return is_due and not self._is_saved and self._outcome is None

    @property
    def has_trained(self) -> bool:
        """Whether there may be anything to save: there was a map, and the chief has created the tables."""
        with self._changed:
            return self._run.routing is not None and (
                not self._roster.workers or self._run.initialized_epoch > 0
            )

    @property
    def num_workers(self) -> int:
        return len(self._roster.workers)

    @property
    def has_unsaved_pushes(self) -> bool:
        """Whether a ps has reported a push that the newest checkpoint may not hold."""
        with self._changed:
            return any(place.load.pushes > place.pushes_saved for place in self._roster.ps)

    def untrained_shares(self) -> list[str]:
        """What a job that ends well has left out: a sentence for each worker that did not finish."""
        with self._changed:
            return [
                place.lost_share() for place in self._roster.workers if place.has_untrained_share
            ]

    @property
    def pushes_unknown(self) -> int:
        """Parts of the workers' pushes of which nobody will know whether they were applied."""
        with self._changed:
            return self._losses.pushes_unknown

    def add_loss(self, what: str) -> None:
        """Say that something is lost of which no rows are counted."""
        with self._changed:
            self._losses.add(0, what)

    def losses(self) -> tuple[int, tuple[Loss, ...]]:
        """(rows lost so far, the losses in words)."""
        with self._changed:
            return self._losses.rows, self._losses.said

    def checkpoint_saved(
        self, path: str, at_s: float, pushes: Mapping[int, int] | None = None
    ) -> None:
        """A checkpoint is complete, which a ps that is replaced will start from.

        `pushes` are, by session, those that a ps had applied before it wrote its files.
        """
        with self._changed:
            self._losses.saved(path, at_s)
            for session, number in (pushes or {}).items():
                place = self._sessions.place_of(session)
                if place is not None:
                    place.pushes_saved = number
            self._wake_journal()

    def wake(self) -> None:
        """Let waiting threads look at their stop condition again."""
        with self._changed:
            self._changed.notify_all()

    def end(self, succeeded: bool, reason: str) -> None:
        """Decide the outcome. The first call decides; later ones change nothing."""
        with self._changed:
            if self._outcome is None:
                self._outcome = (succeeded, reason)
                self._outcome_at_s = time.time()
                logger.info(
                    "job ended succeeded=%s reason=%s step=%d",
                    succeeded,
                    reason,
                    self._run.global_step,
                )
                self._settle()

    @property
    def outcome(self) -> tuple[bool, str] | None:
        with self._changed:
            return self._outcome

    def wait_until_ended(self, stop: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Block until the outcome is decided (True), or `stop()` holds or the time is over (False)."""
        with self._changed:
            self._changed.wait_for(lambda: stop() or self._outcome is not None, timeout_s)
            return self._outcome is not None

    def dismiss(self, reason: str, timeout_s: float) -> None:
        """Tell every member to exit and wait until all have left, or the time is over."""
        with self._changed:
            self._sessions.tell(ShutdownOrder(reason))
            self._changed.wait_for(lambda: len(self._sessions) == 0, timeout_s)

    def end_sessions(self) -> None:
        """End every stream; members will look for another controller."""
        with self._changed:
            self._sessions.tell(SessionEnd())

    def journal(self) -> Journal:
        """What the next controller must know if this one dies now."""
        with self._changed:
            return replace(
                self._run.journal(),
                rows_lost=self._losses.rows,
                losses=self._losses.said,
                pushes_unknown=self._losses.pushes_unknown,
                outcome=Outcome(*self._outcome, self._outcome_at_s)
                if self._outcome is not None
                else None,
            )

    # --- the state machine ---

    def _settle(self) -> None:
        """Draw the consequences of a change and tell everyone who must know. Called under the lock."""
        self._run.decide()
        if self._journal is not None and not self._run.is_awaited:
            if self._run.has_recovered:
                self._losses.recall(
                    self._journal.rows_lost, self._journal.losses, self._journal.pushes_unknown
                )
            self._journal = None
        if not self._run.is_awaited and not self._roster.missing_ps() and not self._run.is_routed:
            self._route()
        state = self._state()
        told = (
            state.phase,
            state.routing and state.routing.epoch,
            state.barrier,
            state.finished_workers,
            state.is_saved,
        )
        if told != self._told:
            self._told = told
            self._sessions.tell(state)
            self._wake_journal()
        self._changed.notify_all()

    def _route(self) -> None:
        """Make a map of the parameter servers that are here, unless they have only a part of the model."""
        restored = [place.load.restored for place in self._roster.ps]
        fault = self._restore_fault(restored, is_first=self._run.is_new)
        if fault:
            self.end(False, fault)
        else:
            self._run.route()
            self._losses.run_ready(
                [one for one in restored if one is not None], counts_steps=self.num_workers > 0
            )

    def _phase(self) -> Phase:
        if self._outcome is not None:
            return Phase.FINISHED
        if self._run.is_awaited or self._run.routing is None or self._roster.missing_ps():
            return Phase.FORMING
        if self._roster.workers and self._run.initialized_epoch < self._run.epoch:
            return Phase.INITIALIZING
        return Phase.RUNNING

    def _state(self) -> ClusterState:
        return ClusterState(
            phase=self._phase(),
            routing=None if self._run.is_awaited else self._run.routing,
            barrier=self._run.barrier.state,
            finished_workers=self._roster.finished_workers(),
            positions=tuple(place.progress.position for place in self._roster.workers),
            global_step=self._run.global_step,
            first_step=self._run.first_step,
            is_saved=self._is_saved,
        )


def _held(left: Journal) -> Held:
    """What a run held that does not go on."""
    members = [member for member in left.ps if member.incarnation in left.routed]
    pushes = sum(member.pushes - member.pushes_saved for member in members)
    return Held(sum(member.rows for member in members), left.global_step, pushes)
