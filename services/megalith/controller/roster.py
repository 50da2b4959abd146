"""Who is in the cluster: the members the job expects, who holds each place, and what they last said."""

from dataclasses import dataclass, field
from enum import Enum, StrEnum

from megalith.wire.errors import IndexTaken, NotInCluster


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
    progress: WorkerProgress = field(default_factory=WorkerProgress)
    load: PsLoad = field(default_factory=PsLoad)

    def is_silent(self, now: float, limit_s: float) -> bool:
        """Not heard of for `limit_s`, and for three of its own heart-beats."""
        return now - self.last_seen > max(limit_s, 3 * self.heartbeat_s)

    def standing(self, now: float, suspect_s: float) -> Standing:
        if self.is_connected:
            return Standing.ALIVE
        if not self.address:
            return Standing.EXPECTED
        return Standing.SUSPECT if now - self.last_seen <= suspect_s else Standing.DEAD


class Roster:
    """The places of one job. Not thread-safe: the cluster's lock guards it."""

    def __init__(self, num_ps: int, num_workers: int, taken_silence_s: float) -> None:
        self.ps = [Place(Role.PS, index) for index in range(num_ps)]
        self.workers = [Place(Role.WORKER, index) for index in range(num_workers)]
        self._taken_silence_s = taken_silence_s

    def places(self, role: Role) -> list[Place]:
        return self.ps if role is Role.PS else self.workers

    def take(self, registration: Registration, now: float) -> Place:
        """Give the place to this process, which may be back after a lost stream or new.

        A holder that is connected and has been heard lately keeps it: IndexTaken. NotInCluster if there is no such
        place.
        """
        role, index, places = registration.role, registration.index, self.places(registration.role)
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
        if place.is_connected and not is_same and not place.is_silent(now, self._taken_silence_s):
            raise IndexTaken(
                f"{role} {index} is held by a live process at {place.address}; stop that one or use another index"
            )
        if not is_same:
            place.load = PsLoad()
        place.address, place.metrics_address = registration.address, registration.metrics_address
        place.incarnation, place.is_connected, place.last_seen = registration.incarnation, True, now
        place.heartbeat_s = registration.heartbeat_s
        return place
