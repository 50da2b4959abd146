"""Who is in the cluster: the members the job expects, who holds each place, what they last said and what that means."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum

from megalith.controller.barrier import BarrierState
from megalith.runtime.lease import LEASE_MARGIN_S, LEASE_S
from megalith.runtime.manifest import Restored
from megalith.wire.errors import IndexTaken, NotInCluster

_TAKEOVER_S = 3.0  # a holder that is silent for this long gives way to a replacement that is here


class Role(StrEnum):
    PS = "ps"
    WORKER = "worker"


class Standing(Enum):
    """What the controller makes of a place's holder."""

    EXPECTED = "expected"  # nobody has held it yet
    ALIVE = "alive"  # its session is open
    SUSPECT = "suspect"  # its session was lost a moment ago; it may be back, and its work counts on
    DEAD = "dead"  # lost for too long: nothing is to be expected of it


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """A worker's last report; see WorkerReport in coordination.proto."""

    global_step: int = 0
    position: int = 0
    total_batches: int = 0
    examples: int = 0
    examples_per_s: float = 0.0
    loss: float = 0.0
    is_blocked: bool = False
    is_finished: bool = False
    initialized_epoch: int = 0
    results: dict[str, float] = field(default_factory=dict)
    barrier_id: int = 0
    has_begun: bool = False
    failovers: int = 0
    pushes_unknown: int = 0
    is_trained: bool = False

    @property
    def standing(self) -> tuple[object, ...]:
        """What decisions depend on. A report that leaves it as it was, and most do, costs no look at the others."""
        return (
            self.is_blocked,
            self.barrier_id,
            self.has_begun,
            self.is_trained,
            self.is_finished,
            self.initialized_epoch,
        )


@dataclass(frozen=True, slots=True)
class PsLoad:
    """A parameter server's last report; see PsReport in coordination.proto."""

    is_ready: bool = False
    rows: int = 0
    bytes: int = 0
    pulls: int = 0
    pushes: int = 0
    requests_per_s: float = 0.0
    p99_s: float = 0.0
    resident_bytes: int = 0
    memory_limit_bytes: int = 0
    complaint: str = ""
    restored: Restored | None = None  # None until it is ready
    tables: int = 0
    variables: int = 0

    @property
    def standing(self) -> tuple[object, ...]:
        """As of `WorkerProgress`."""
        return (self.is_ready, self.complaint != "", self.restored)


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


@dataclass(slots=True)
class Place:
    """One index of a role. It outlives the processes that hold it, so progress survives a replacement."""

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
    has_lease: bool = False  # its holder may answer for it for LEASE_S after it was last heard
    leased_until: float = 0.0  # to an earlier holder; no map may name the present one before
    progress: WorkerProgress = field(default_factory=WorkerProgress)
    load: PsLoad = field(default_factory=PsLoad)
    pushes_saved: int = 0  # of those in `load`, how many the newest checkpoint holds for sure

    @property
    def has_untrained_share(self) -> bool:
        """A worker that has neither said that it finished nor trained as many batches as there are."""
        said = self.progress
        return not said.is_finished and not 0 < said.total_batches <= said.position

    def lost_share(self) -> str:
        """How far a worker came that did not finish, for people."""
        if not self.address:
            return f"worker {self.index} never came: its share was not trained"
        share = f" of {self.progress.total_batches:,}" if self.progress.total_batches else ""
        how = "had trained" if self.is_connected else "was lost after"
        return f"worker {self.index} {how} {self.progress.position:,}{share} batches: the rest was not trained"

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
        """The refusal of another process. It says how long the holder may be silent, should it be dead."""
        unheard_s = now - self.last_seen
        error = IndexTaken(
            f"{self.role} {self.index} is held by a live process {self.process}, heard {unheard_s:.1f} s ago; stop "
            f"that one or use another index. Were it dead, its place would be free after {limit_s:.0f} s of silence"
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
    """The places of one job, and what is made of their holders. Not thread-safe: the coordinator's lock guards it."""

    def __init__(
        self,
        num_ps: int,
        num_workers: int,
        patience: Patience,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ps = [Place(Role.PS, index) for index in range(num_ps)]
        self.workers = [Place(Role.WORKER, index) for index in range(num_workers)]
        self._patience, self._clock = patience, clock

    @property
    def places(self) -> tuple[Place, ...]:
        """All of them, parameter servers first."""
        return (*self.ps, *self.workers)

    def holder(self, registration: Registration) -> Place | None:
        """A copy of the place that a process asks for, as it is now; None if there is none or nobody has held it."""
        places = self.ps if registration.role is Role.PS else self.workers
        if not 0 <= registration.index < len(places) or not places[registration.index].incarnation:
            return None
        return replace(places[registration.index])

    def take(self, registration: Registration) -> Place:
        """Give the place to this process, which may be back after a lost stream or new.

        A holder that is connected and has been heard lately keeps it: IndexTaken. NotInCluster if there is no such
        place.
        """
        role, index, now = registration.role, registration.index, self._clock()
        places = self.ps if role is Role.PS else self.workers
        if registration.num_ps not in (0, len(self.ps)):
            raise NotInCluster(
                f"{role} {index} expects {registration.num_ps} ps, this cluster has {len(self.ps)}; "
                "start the controller with the same number"
            )
        if not 0 <= index < len(places):
            flag = "--num-ps" if role is Role.PS else "--num-workers"
            raise NotInCluster(
                f"{role} index {index} is outside this cluster of {len(places)} {role}; "
                f"use an index below {len(places)}, or start the controller with {flag}={index + 1} or more"
            )
        place = places[index]
        is_same = place.incarnation == registration.incarnation
        limit_s = place.silence_limit_s(min(_TAKEOVER_S, self._patience.silence_s))
        if place.is_connected and not is_same and now - place.last_seen <= limit_s:
            raise place.taken(now, limit_s)
        if not is_same:
            place.load = PsLoad()
            place.pushes_saved = 0
            if place.has_lease:
                place.leased_until = max(
                    place.leased_until, place.last_seen + LEASE_S + LEASE_MARGIN_S
                )
        place.address, place.metrics_address = registration.address, registration.metrics_address
        place.incarnation, place.is_connected, place.last_seen = registration.incarnation, True, now
        place.heartbeat_s = registration.heartbeat_s
        place.has_lease = registration.has_lease
        place.pid, place.host = registration.pid, registration.host
        return place

    def hear(self, place: Place) -> None:
        """Its holder has just said something."""
        place.last_seen = self._clock()

    def unheard_s(self, place: Place) -> float:
        """Seconds since its holder was last heard; 0 if nobody has held it yet."""
        return self._clock() - place.last_seen if place.address else 0.0

    def forgive(self, pause_s: float) -> None:
        """Take that much off everybody's silence."""
        for place in self.places:
            place.last_seen += pause_s

    def silent(self) -> list[Place]:
        """Places whose holder has not been heard for too long, connected or not."""
        now = self._clock()
        return [place for place in self.places if place.is_silent(now, self._patience.silence_s)]

    def standing(self, place: Place) -> Standing:
        return place.standing(self._clock(), self._patience.suspect_s)

    def is_reachable(self, place: Place) -> bool:
        """Alive, or a suspect: one whose session alone was lost may still serve and train."""
        return self.standing(place) in (Standing.ALIVE, Standing.SUSPECT)

    def missing_ps(self) -> list[int]:
        """Indices of parameter servers that are not restored, are known to be gone, or whose predecessor may serve."""
        now = self._clock()
        return [
            place.index
            for place in self.ps
            if not (place.load.is_ready and self.is_reachable(place)) or now < place.leased_until
        ]

    def blocked_workers(self, barrier: BarrierState) -> list[int]:
        """Indices of workers that stand at this barrier; see GetBlockStatusResponse."""
        return [place.index for place in self.workers if _is_blocked(place, barrier)]

    def moving_workers(self, barrier: BarrierState) -> list[int]:
        """Indices of workers that may take a step: not those that are blocked, done, dead or never came."""
        return [
            place.index
            for place in self.workers
            if self.is_reachable(place)
            and not place.progress.is_finished
            and not (place.is_connected and _is_blocked(place, barrier))
        ]

    def finished_workers(self) -> tuple[int, ...]:
        """Indices of workers that said so, or that have been lost for so long that their share counts as done."""
        return tuple(
            place.index
            for place in self.workers
            if place.progress.is_finished
            or (not place.is_connected and self.unheard_s(place) > self._patience.lost_worker_s)
        )

    def given_up_workers(self) -> list[Place]:
        """Those that were lost for so long that their share counts as done, though it was not trained."""
        finished = self.finished_workers()
        return [
            place for place in self.workers if place.index in finished and place.has_untrained_share
        ]

    def is_trained(self) -> bool:
        """Nobody trains any more: the chief says so before it evaluates, or the workers are done."""
        return self.are_workers_done() or any(
            place.progress.is_trained for place in self.workers[:1]
        )

    def are_workers_done(self) -> bool:
        """The chief waits for the others before it is finished, but not for ever: its word ends the job."""
        if not self.workers:
            return False
        return self.workers[0].progress.is_finished or len(self.finished_workers()) == len(
            self.workers
        )


def _is_blocked(place: Place, barrier: BarrierState) -> bool:
    # Slot 0 of the reference is the barrier itself; with a chief connected the chief's own word is better.
    if place.index == 0 and not place.is_connected:
        return barrier.is_placed
    said = place.progress
    return (
        place.is_connected
        and barrier.is_placed
        and said.is_blocked
        and said.barrier_id == barrier.id
    )
