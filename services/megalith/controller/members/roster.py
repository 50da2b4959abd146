"""Who is in the cluster: who holds each seat, what they last said and what that means."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum

from megalith.controller.members.barrier import BarrierState
from megalith.errors import IndexTaken, NotInCluster
from megalith.runtime.counting import counted
from megalith.runtime.joining.lease import LEASE_MARGIN_S, LEASE_S
from megalith.wire.reports import LeftOut, PsReport, WorkerReport

_TAKEOVER_S = 3.0  # a holder that is silent for this long gives way to a replacement that is here


class Role(StrEnum):
    PS = "ps"
    WORKER = "worker"


class Standing(Enum):
    """What the controller makes of a seat's holder."""

    EXPECTED = "expected"  # nobody has held it yet
    ALIVE = "alive"  # its session is open
    SUSPECT = "suspect"  # its session was lost a moment ago; it may be back, and its work counts on
    DEAD = "dead"  # lost for too long: nothing is to be expected of it


def decisive_of_worker(report: WorkerReport) -> tuple[object, ...]:
    """What decisions depend on.

    A report that leaves it as it was, and most do, costs no look at the others.
    """
    return (
        report.is_blocked,
        report.barrier_id,
        report.has_begun,
        report.is_trained,
        report.is_finished,
        report.is_share_over,
        report.initialized_epoch,
    )


def decisive_of_ps(report: PsReport) -> tuple[object, ...]:
    """As `decisive_of_worker`."""
    return (report.is_ready, report.complaint != "", report.restored)


@dataclass(frozen=True, slots=True)
class Registration:
    """What a process says of itself when it joins."""

    role: Role
    index: int
    address: str
    metrics_address: str = ""
    incarnation: str = ""
    epoch: int = 0
    initialized_epoch: int = 0
    num_ps: int = 0
    heartbeat_s: float = 0.0
    job: str = ""
    global_step: int = 0
    first_step: int | None = None
    held_shard: int | None = None
    pid: int = 0  # for people, as is the host
    host: str = ""
    run_id: str = ""
    has_lease: bool = False

    @property
    def name(self) -> str:
        """Its name in messages and logs: `ps-0`, `worker-1`."""
        return f"{self.role}-{self.index}"


@dataclass(slots=True)
class Seat:
    """One index of a role.

    It outlives the processes that hold it, so progress survives a replacement.
    """

    role: Role
    index: int
    address: str = ""
    metrics_address: str = ""
    incarnation: str = ""
    is_connected: bool = False
    last_seen: float = 0.0
    heartbeat_s: float = 0.0
    pid: int = 0
    host: str = ""
    # Its holder acts for it for LEASE_S after it was last heard: a ps answers, a worker pushes
    has_lease: bool = False
    # To an earlier holder: no map names the present ps before, no barrier counts the present worker
    leased_until: float = 0.0
    progress: WorkerReport = field(default_factory=WorkerReport)
    load: PsReport = field(default_factory=PsReport)
    examples_before: int = 0  # that earlier holders of a worker's seat had reported in this run
    left_out_before: LeftOut = field(default_factory=LeftOut)  # by earlier holders, in the same way
    report_order: int = 0  # the newest order to report that its last report came after
    num_reports: int = 0  # of a ps, by all who have held the seat
    pushes_saved: int = 0  # of those in `load`, how many the newest checkpoint holds for sure

    @property
    def name(self) -> str:
        """Its name in messages and logs: `ps-0`, `worker-1`. Of a ps, the index is its shard."""
        return f"{self.role}-{self.index}"

    @property
    def left_out(self) -> LeftOut:
        """By all who have held a worker's seat in this run, as far as they have reported."""
        return self.left_out_before + LeftOut.of(self.progress)

    @property
    def has_untrained_share(self) -> bool:
        """A worker that did not say that it finished, nor has trained all of its batches."""
        said = self.progress
        return not said.is_finished and not 0 < said.total_batches <= said.position

    def lost_share(self) -> str:
        """How far a worker came that did not finish, for people."""
        if not self.address:
            return f"{self.name} never came: its share was not trained"

        total = self.progress.total_batches
        trained = counted(self.progress.position, "batch", "batches")
        if total:
            batches = counted(total, "batch", "batches")
            trained = f"{self.progress.position:,} of {batches}"

        how = "had trained" if self.is_connected else "was lost after"
        return f"{self.name} {how} {trained}: the rest was not trained"

    def is_silent(self, now: float, limit_s: float) -> bool:
        """Not heard of for `limit_s`, and for three of its own heart-beats."""
        return now - self.last_seen > self.silence_limit_s(limit_s)

    def silence_limit_s(self, limit_s: float) -> float:
        """How long its holder may say nothing before it is given up."""
        return max(limit_s, 3 * self.heartbeat_s)

    @property
    def process(self) -> str:
        """For people: which process holds it, as far as that is known."""
        if not self.pid:
            return f"at {self.address}"

        return f"at {self.address} (process {self.pid} on {self.host or 'an unnamed machine'})"

    def taken(self, now: float, limit_s: float) -> IndexTaken:
        """The refusal of another process.

        It says how long the holder may be silent, should it be dead.
        """
        unheard_s = now - self.last_seen
        error = IndexTaken(
            f"{self.name} is held by a live process {self.process}, heard "
            f"{unheard_s:.1f} s ago; stop that one or use another index. Were it dead, its seat "
            f"would be free after {limit_s:.0f} s of silence"
        )

        error.retry_for_s = limit_s
        return error

    def standing(self, now: float, suspect_s: float) -> Standing:
        if self.is_connected:
            return Standing.ALIVE
        if not self.address:
            return Standing.EXPECTED

        return Standing.SUSPECT if now - self.last_seen <= suspect_s else Standing.DEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long members are waited for, in seconds."""

    silence_s: float  # an open session that says nothing
    suspect_s: float  # a lost session, before its member counts as dead
    lost_worker_s: float  # a dead worker, before its share counts as done
    health_resume_s: float = (
        60.0  # a ps that complains, after an operator has resumed training all the same
    )


class Roster:
    """The seats of one job, and what is made of their holders.

    Not thread-safe: the coordinator's lock guards it.
    """

    def __init__(
        self,
        num_ps: int,
        num_workers: int,
        patience: Patience,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ps = [Seat(Role.PS, index) for index in range(num_ps)]
        self.workers = [Seat(Role.WORKER, index) for index in range(num_workers)]
        self._patience = patience
        self._clock = clock
        # Whether all of an input that is handed out is trained; the run says so
        self.is_input_done: Callable[[], bool] = lambda: False

    @property
    def seats(self) -> tuple[Seat, ...]:
        """All of them, parameter servers first."""
        return (*self.ps, *self.workers)

    def holder(self, registration: Registration) -> Seat | None:
        """A copy of the seat that a process asks for, as it is now.

        None if there is none or nobody has held it.
        """
        seats = self.ps if registration.role is Role.PS else self.workers
        if not 0 <= registration.index < len(seats):
            return None

        seat = seats[registration.index]
        return replace(seat) if seat.incarnation else None

    def take(self, registration: Registration) -> Seat:
        """Give the seat to this process, which may be back after a lost stream or new.

        A holder that is connected and has been heard lately keeps it: IndexTaken. NotInCluster if
        there is no such seat.
        """
        role = registration.role
        index = registration.index
        now = self._clock()
        seats = self.ps if role is Role.PS else self.workers

        if registration.num_ps not in (0, len(self.ps)):
            raise NotInCluster(
                f"{registration.name} expects {registration.num_ps} ps, "
                f"this cluster has {len(self.ps)}; "
                "start the controller with the same number"
            )

        if not 0 <= index < len(seats):
            flag = "--num-ps" if role is Role.PS else "--num-workers"
            raise NotInCluster(
                f"{role} index {index} is outside this cluster of {len(seats)} {role}; "
                f"use an index below {len(seats)}, or start the controller with "
                f"{flag}={index + 1} or more"
            )

        seat = seats[index]
        is_same = seat.incarnation == registration.incarnation
        limit_s = seat.silence_limit_s(min(_TAKEOVER_S, self._patience.silence_s))
        if seat.is_connected and not is_same and now - seat.last_seen <= limit_s:
            raise seat.taken(now, limit_s)

        if not is_same:
            seat.load = PsReport()
            seat.pushes_saved = 0
            if seat.has_lease:
                seat.leased_until = max(
                    seat.leased_until, seat.last_seen + LEASE_S + LEASE_MARGIN_S
                )

        seat.address = registration.address
        seat.metrics_address = registration.metrics_address
        seat.incarnation = registration.incarnation
        seat.is_connected = True
        seat.last_seen = now
        seat.heartbeat_s = registration.heartbeat_s
        seat.has_lease = registration.has_lease
        seat.pid = registration.pid
        seat.host = registration.host
        return seat

    def hear(self, seat: Seat) -> None:
        """Its holder has just said something."""
        seat.last_seen = self._clock()

    def wait_for_lease(self, seat: Seat) -> None:
        """Somebody before its holder may have a lease that begins now, at the latest."""
        seat.leased_until = self._clock() + LEASE_S + LEASE_MARGIN_S

    def has_predecessor(self, seat: Seat) -> bool:
        """Whether somebody before its holder may still act for it, by a lease that is not over."""
        return self._clock() < seat.leased_until

    def unheard_s(self, seat: Seat) -> float:
        """Seconds since its holder was last heard; 0 if nobody has held it yet."""
        return self._clock() - seat.last_seen if seat.address else 0.0

    def forgive(self, pause_s: float) -> None:
        """Take that much off everybody's silence."""
        now = self._clock()
        for seat in self.seats:
            seat.last_seen = min(now, seat.last_seen + pause_s)  # some were heard after the pause

    def silent(self) -> list[Seat]:
        """Seats whose holder has not been heard for too long, connected or not."""
        now = self._clock()
        return [seat for seat in self.seats if seat.is_silent(now, self._patience.silence_s)]

    def standing(self, seat: Seat) -> Standing:
        return seat.standing(self._clock(), self._patience.suspect_s)

    def is_reachable(self, seat: Seat) -> bool:
        """Alive, or a suspect: one whose session alone was lost may still serve and train."""
        return self.standing(seat) in (Standing.ALIVE, Standing.SUSPECT)

    def is_gone(self, index: int, incarnation: str) -> bool:
        """Whether that process acts no more for a worker's seat.

        Another one has the seat, or it is dead; and no server takes its requests any more. Or it
        has ended its share.
        """
        if not 0 <= index < len(self.workers):
            return True

        seat = self.workers[index]
        if seat.incarnation != incarnation:
            return not self.has_predecessor(seat)
        if seat.progress.is_share_over:
            return True

        return self.standing(seat) is Standing.DEAD and not self._is_lost_one_served(seat)

    def missing_ps(self) -> list[int]:
        """Indices of ps that are not ready, or gone, or whose predecessor may still serve."""
        missing = []

        for seat in self.ps:
            is_here = seat.load.is_ready and self.is_reachable(seat)
            if not is_here or self.has_predecessor(seat):
                missing.append(seat.index)

        return missing

    def blocked_workers(self, barrier: BarrierState) -> list[int]:
        """Indices of workers that stand at this barrier; see GetBlockStatusResponse."""
        blocked = []
        for seat in self.workers:
            if _is_blocked(seat, barrier) and not self._is_lost_one_served(seat):
                blocked.append(seat.index)

        return blocked

    def moving_workers(self, barrier: BarrierState) -> list[int]:
        """Indices of workers that may take a step: not blocked, done or dead, and here before.

        A worker is done with that when its share is over: a chief that evaluates takes none.
        """
        return [seat.index for seat in self.workers if self._may_move(seat, barrier)]

    def _may_move(self, seat: Seat, barrier: BarrierState) -> bool:
        if self._is_lost_one_served(seat):
            return True
        has_ended = seat.progress.is_finished or seat.progress.is_share_over
        if has_ended or not self.is_reachable(seat):
            return False

        is_blocked = seat.is_connected and _is_blocked(seat, barrier)
        return not is_blocked

    def _is_lost_one_served(self, seat: Seat) -> bool:
        """Whether servers may still take requests of a worker that was lost or replaced.

        They do until its lease is over, because it may be alive and only cut off from here.
        """
        if self.has_predecessor(seat):
            return True

        lease_ends_at = seat.last_seen + LEASE_S + LEASE_MARGIN_S
        return seat.has_lease and not seat.is_connected and self._clock() < lease_ends_at

    def finished_workers(self) -> tuple[int, ...]:
        """Indices of workers that said so, or were lost for so long that they count as done.

        Once others have trained all of an input that is handed out, nobody waits for a dead worker.
        The chief has more to do: it is waited for.
        """
        finished = []
        is_input_done = self.is_input_done()
        for seat in self.workers:
            is_away = not seat.is_connected
            is_given_up = is_away and self.unheard_s(seat) > self._patience.lost_worker_s
            is_needless = is_input_done and seat.index > 0 and not self.is_reachable(seat)

            if seat.progress.is_finished or is_given_up or is_needless:
                finished.append(seat.index)

        return tuple(finished)

    def given_up_workers(self) -> list[Seat]:
        """Those whose share counts as done, though it was not trained: they were lost for long."""
        finished = self.finished_workers()
        return [
            seat for seat in self.workers if seat.index in finished and seat.has_untrained_share
        ]

    def is_trained(self) -> bool:
        """Nobody trains any more: the chief says so before it evaluates, or workers are done."""
        if not self.workers:
            return False

        chief = self.workers[0]
        return chief.progress.is_trained or self.are_workers_done()

    def are_workers_done(self) -> bool:
        """The chief's word ends the job: it waits for the others, but not for ever."""
        if not self.workers:
            return False

        chief = self.workers[0]
        if chief.progress.is_finished:
            return True

        return len(self.finished_workers()) == len(self.workers)


def _is_blocked(seat: Seat, barrier: BarrierState) -> bool:
    # Slot 0 of Monolith is the barrier itself; with a chief connected the chief's own word is
    # better.
    if seat.index == 0 and not seat.is_connected:
        return barrier.is_placed

    said = seat.progress
    return (
        seat.is_connected
        and barrier.is_placed
        and said.is_blocked
        and said.barrier_id == barrier.id
    )
