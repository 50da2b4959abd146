"""What a formation decides about: how many parameter servers there are, and their offers."""

from dataclasses import dataclass, field

from megalith.controller.members.directives import MeasureOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many there are, how many are needed, and how patient to be."""

    num_ps: int
    num_extra_ps: int = 0
    num_redundant_ps: int = 0
    num_workers: int = 0
    benchmark_s: float = 5.0
    takeover_s: float = 30.0  # that a shard may be without its ps before one that stands by gets it
    override: str = ""

    @property
    def num_candidates(self) -> int:
        return self.num_ps + self.num_extra_ps + self.num_redundant_ps

    @property
    def num_required(self) -> int:
        """Those to wait for."""
        return self.num_ps + self.num_extra_ps


@dataclass(slots=True)
class Offer:
    """A ps that is here and asks for a shard. Guarded by the formation's lock."""

    index: int
    address: str
    incarnation: str
    shard: int | None = None
    is_over: bool = False  # withdrawn, or dismissed
    reason: str = ""  # why it is to exit; empty = only its session ends
    pid: int = 0  # for people, as is the host
    host: str = ""


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """For people."""

    index: int
    address: str
    is_connected: bool
    shard: int | None
    rows_per_s: float


@dataclass(slots=True)
class Measurement:
    """One order, who was told, and what they answered, by session."""

    order: MeasureOrder
    deadline: float
    answers: dict[int, dict[str, float]] = field(default_factory=dict)
    sessions: tuple[int, ...] = ()

    def means(self) -> dict[str, float]:
        """The mean over the workers, by address."""
        count = len(self.answers)
        means = {}
        for address in self.order.addresses:
            rates = [answer.get(address, 0.0) for answer in self.answers.values()]
            means[address] = sum(rates) / count

        return means
