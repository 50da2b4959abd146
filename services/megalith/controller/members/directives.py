"""What the controller tells members: phases, the state of the cluster, directives."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from megalith.checkpoint.starting.choices import EVERYTHING, RestoreChoices
from megalith.controller.members.barrier import BarrierState
from megalith.wire.routing import Routing


class Phase(Enum):
    """What a caller may rely on."""

    FORMING = "forming"  # a ps is missing or not ready; no data call is sure to succeed
    INITIALIZING = (
        "initializing"  # every ps is ready; tables may be missing until the chief has made them
    )
    RUNNING = "running"  # tables and variables exist on every ps of the map
    FINISHED = "finished"  # the outcome is decided; processes are leaving


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What every member is told, whole, at each change."""

    phase: Phase
    routing: Routing | None
    barrier: BarrierState
    finished_workers: tuple[int, ...]
    positions: tuple[int, ...]
    global_step: int
    first_step: int  # the global step at which this run began
    is_saved: bool = False  # the trained model is saved: the chief may evaluate
    cursors: tuple[bytes, ...] = ()  # by worker: where its input is
    first_cursors: tuple[bytes, ...] = ()  # of the checkpoint that this run began from


@dataclass(frozen=True, slots=True)
class Welcome:
    """To a member that got its seat.

    A new ps restores that checkpoint with so many of its increments; empty = it starts empty.
    """

    index: int
    restore_from: str = ""
    restore_increments: int = 0
    choices: RestoreChoices = EVERYTHING


@dataclass(frozen=True, slots=True)
class StandBy:
    """To a ps: more are here than are needed; wait."""


@dataclass(frozen=True, slots=True)
class SaveShard:
    """To a ps: write your shard.

    With a `base`, the save id of a checkpoint, only what changed: increment `number` of it. If
    `dense_only`, the variables alone. After `timeout_s` the save is given up.
    """

    save_id: str
    directory: str
    step: int
    base: str = ""
    number: int = 0
    dense_only: bool = False
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MeasureOrder:
    """To a worker: find out how fast these parameter servers are."""

    number: int
    addresses: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class ReportOrder:
    """To a worker: report at once, and say that this was done."""

    number: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """To a ps: its renewal of that time was heard."""

    sent_ns: int


@dataclass(frozen=True, slots=True)
class ShutdownOrder:
    """To a member: exit."""

    reason: str


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Not sent: the stream ends here."""


Directive = (
    ClusterState | SaveShard | MeasureOrder | ReportOrder | Renewed | ShutdownOrder | SessionEnd
)
# What a session is told: the directives, and how it begins
Told = Directive | Welcome | StandBy
Send = Callable[[Directive], None]
