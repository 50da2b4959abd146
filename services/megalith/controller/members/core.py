"""What every decision of the controller stands on: one lock, and the state that it guards."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from megalith.controller.members.directives import ClusterState, Phase
from megalith.controller.members.journal import Journal
from megalith.controller.members.losses import Loss, Losses
from megalith.controller.members.roster import Patience, Roster, Seat, Standing
from megalith.controller.members.run import Run
from megalith.controller.members.sessions import Sessions
from megalith.controller.members.succession import JobOutcome, Succession
from megalith.wire.reports import RestoreReport
from megalith.wire.routing import Routing

logger = logging.getLogger(__name__)

_SURVIVORS_S = (
    60.0  # a member notices after 30 s that its controller is paused: the keep-alive of its channel
)

_CHECK_S = 0.25  # a look at the model directory costs milliseconds where it is far away


class HealthCheck:
    """Remembers who complains. Not thread-safe: the coordinator's lock guards it.

    Each complaint is logged once. After an operator has resumed training, it goes on for
    `resume_s` although the same ps still complain. Then, or as soon as another one complains, it is
    held again.
    """

    def __init__(self, resume_s: float, clock: Callable[[], float]) -> None:
        self._resume_s = resume_s
        self._clock = clock
        self._unhealthy: set[tuple[int, str]] = set()  # (index, incarnation) of ps that complain
        self._tolerated_until = 0.0

    def tolerate(self) -> None:
        """An operator has resumed training all the same."""
        self._tolerated_until = self._clock() + self._resume_s

    def reason_to_hold(self, seat: Seat, ps: Sequence[Seat]) -> str:
        """Why training is to be held after this seat's report; empty = it goes on."""
        key = (seat.index, seat.incarnation)
        if not seat.load.complaint:
            self._unhealthy.discard(key)
            return ""

        if key not in self._unhealthy:
            present = {(each.index, each.incarnation) for each in ps}
            self._unhealthy = present & (self._unhealthy | {key})
            self._tolerated_until = self._clock()
            _log_complaints(ps)

        if self._clock() < self._tolerated_until:
            return ""

        return f"{seat.name}: {seat.load.complaint}"


def _log_complaints(ps: Sequence[Seat]) -> None:
    lines = []
    for seat in ps:
        if seat.is_connected and seat.load.complaint:
            lines.append(f"{seat.name}: {seat.load.complaint}")

    logger.error("PS are not healthy:\n%s", "\n".join(lines))


class RestoreFault(Protocol):
    """Why parameter servers that are ready must not go on together; see `StartPoint.fault`."""

    def __call__(self, restored: Sequence[RestoreReport | None], *, is_first: bool) -> str: ...


class ClusterCore:
    """The state of the cluster, how to ask for it, and how a change of it is published.

    The lock guards everything here; the condition on it is notified at each change. `send`
    functions of sessions are called under it, so each session sees directives in the order of the
    decisions; they only enqueue. `wake_journal` and `restore_fault` are called under it too;
    `flush_journal` is called without it and returns once the newest state is on disk. A fault of
    what servers have restored ends the job before workers hear of them; a run that has trained is
    saved before. `check_current` raises once a newer controller serves the job: this one takes
    nobody in and decides nothing then. `find_alive` says which of some addresses somebody listens
    at; it is called without the lock.

    With the `journal` of a controller that died, the run may be the one that it tells of; see
    `Run` and `Succession`.
    """

    def __init__(
        self,
        num_ps: int,
        num_workers: int,
        *,
        patience: Patience,
        job: str = "",
        checkpoint_step: int = 0,
        first_cursors: tuple[bytes, ...] = (),
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
        self.check_current = check_current
        self._restore_fault = restore_fault

        # Also until the servers of an earlier controller have said again what they restored
        self._lacks_rows = journal is not None and journal.lacks_rows

        self._find_alive = find_alive
        self._dropped_tables: dict[str, float] = {}
        self._wake_journal = wake_journal
        self._flush_journal = flush_journal

        self._clock = clock
        self._patience = patience

        self._checked_at = float("-inf")  # when it was last seen that no newer controller serves
        self._changed = threading.Condition()
        self._roster = Roster(num_ps, num_workers, patience, clock)
        self._run = Run(job, self._roster, checkpoint_step, ended_runs, first_cursors)
        self._sessions = Sessions()
        self._losses = Losses()
        self._health = HealthCheck(patience.health_resume_s, clock)
        self._job_outcome = JobOutcome()
        self._succession = Succession(journal, self._run, self._losses, self._job_outcome)
        self._told: tuple[object, ...] = ()  # what the sessions were last told, in short
        self._has_had_members = False
        self._newest_report_order = 0
        self._survivors_until = clock() + _SURVIVORS_S
        self._watched_at: float | None = None

    def state(self) -> ClusterState:
        with self._changed:
            return self._state()

    def seats(self) -> list[tuple[Seat, Standing, float]]:
        """Copies of all seats, each with its standing and the seconds since it was last heard."""
        with self._changed:
            return [
                (replace(seat), self._roster.standing(seat), self._roster.unheard_s(seat))
                for seat in self._roster.seats
            ]

    def dropped_tables(self) -> dict[str, float]:
        """Tables that servers of this run have dropped on purpose, and when, Unix seconds.

        Also those of servers that were replaced since.
        """
        with self._changed:
            return dict(self._dropped_tables)

    @property
    def run_id(self) -> str:
        with self._changed:
            return self._run.id

    @property
    def global_step(self) -> int:
        with self._changed:
            return self._run.global_step

    @property
    def newest_req_time_s(self) -> int:
        """The Unix time of the newest data that a worker has trained; 0 if the data has none."""
        with self._changed:
            return max((seat.progress.req_time_s for seat in self._roster.workers), default=0)

    def cursors(self) -> tuple[bytes, ...]:
        """By worker: where its input is, as it has last reported.

        Of a worker that has not begun, where this run began; empty = at the start.
        """
        with self._changed:
            return self._run.cursors()

    def cursors_step(self) -> int:
        """The step at which the input was where `cursors` say."""
        with self._changed:
            return self._run.cursors_step()

    def current_routing(self, run_id: str = "") -> Routing:
        """The map of the present run, for a client of `run_id`; see `Run.routing_for`."""
        self._check_current_lately()
        with self._changed:
            return self._run.routing_for(run_id)

    @property
    def num_workers(self) -> int:
        return len(self._roster.workers)

    @property
    def has_unsaved_pushes(self) -> bool:
        """Whether a ps has reported a push that the newest checkpoint may not hold."""
        with self._changed:
            return any(seat.load.pushes > seat.pushes_saved for seat in self._roster.ps)

    def has_pushes_beyond(self, pushes: Mapping[int, int]) -> bool:
        """Whether a ps has reported more pushes than these, which are by its session."""
        with self._changed:
            known: dict[int, int] = {}
            for session, number in pushes.items():
                seat = self._sessions.seat_of(session)
                if seat is not None:
                    known[seat.index] = number

            return any(seat.load.pushes > known.get(seat.index, 0) for seat in self._roster.ps)

    @property
    def pushes_unknown(self) -> int:
        """Parts of the workers' pushes of which nobody will know whether they were applied."""
        with self._changed:
            return self._losses.pushes_unknown

    def losses(self) -> tuple[int, tuple[Loss, ...]]:
        """(rows lost so far, the losses in words)."""
        with self._changed:
            return self._losses.rows, self._losses.said

    def add_loss(self, what: str) -> None:
        """Say that something is lost of which no rows are counted."""
        with self._changed:
            self._losses.add(0, what)

    @property
    def lacks_rows(self) -> bool:
        """Whether servers have restored too little: what is saved of them is a part of a model."""
        with self._changed:
            return self._lacks_rows

    @property
    def has_trained(self) -> bool:
        """Whether there may be anything to save; see `Run.has_trained`."""
        with self._changed:
            return self._run.has_trained

    def journal(self) -> Journal:
        """What the next controller must know if this one dies now."""
        with self._changed:
            left = self._succession.journal()
            return replace(left, lacks_rows=self._lacks_rows)

    def wake(self) -> None:
        """Let waiting threads look at their stop condition again."""
        with self._changed:
            self._changed.notify_all()

    def _check_current_lately(self) -> None:
        """`check_current`, for what is asked many times a second; called without the lock.

        A controller that was paused has not looked lately.
        """
        now = self._clock()
        if now - self._checked_at > _CHECK_S:
            self.check_current()
            self._checked_at = now

    # --- the state machine ---

    def _publish_change(self) -> None:
        """Draw the consequences of a change and tell everyone who must know.

        Called under the lock.
        """
        self._run.decide()
        self._succession.take_up()
        is_complete = not self._run.is_awaited and not self._roster.missing_ps()
        if is_complete and not self._run.is_routed:
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
        """Make a map of the ps that are here, unless a part of the model is missing."""
        reports = [seat.load.restored for seat in self._roster.ps]
        fault = self._restore_fault(reports, is_first=self._run.is_new)
        is_open = self._lacks_rows and None in reports
        self._lacks_rows = bool(fault) or is_open

        if fault and self._run.has_trained:
            self._begin_end(False, fault)
        elif fault:
            self._end(False, fault)
        else:
            self._run.route()
            restored = [report for report in reports if report is not None]
            self._losses.run_ready(restored, counts_steps=self.num_workers > 0)

    def _begin_end(self, succeeded: bool, reason: str) -> None:
        if self._job_outcome.begin(succeeded, reason):
            self._wake_journal()
            self._publish_change()

    def _end(self, succeeded: bool, reason: str) -> None:
        if self._job_outcome.decide(succeeded, reason, self._run.global_step):
            self._publish_change()

    def _phase(self) -> Phase:
        return Phase.FINISHED if self._job_outcome.is_decided else self._run.phase

    def _state(self) -> ClusterState:
        progress = [seat.progress for seat in self._roster.workers]
        return ClusterState(
            phase=self._phase(),
            routing=None if self._run.is_awaited else self._run.routing,
            barrier=self._run.barrier,
            finished_workers=self._roster.finished_workers(),
            positions=tuple(each.position for each in progress),
            global_step=self._run.global_step,
            first_step=self._run.first_step,
            is_saved=self._job_outcome.is_saved,
            cursors=tuple(each.cursor for each in progress),
            first_cursors=self._run.first_cursors,
        )
