"""What a table and a variable look like: plain values that the SDK builds, the wire carries and a ps obeys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.wire.admission import NUM_SLOTS, AdmissionConfig, FilterKind
from megalith.wire.compressors import Compressor, FixedR8, Fp16, Fp32, OneBit
from megalith.wire.initializers import Constants, Initializer, Ones, RandomUniform, Zeros
from megalith.wire.optimizers import (
    Adadelta,
    Adagrad,
    Adam,
    Amsgrad,
    BatchSoftmax,
    Dc,
    DynamicWdAdagrad,
    Ftrl,
    GroupAdagrad,
    GroupFtrl,
    Momentum,
    MovingAverage,
    Optimizer,
    Rmsprop,
    RmspropV2,
    Sgd,
    StochasticRoundingFloat16,
)
from megalith.wire.schedules import Constant, LinearWarmup, PolynomialDecay, Schedule, default_schedule, learning_rates
from megalith.wire.validation import require

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdmissionConfig",
    "Amsgrad",
    "BatchSoftmax",
    "Compressor",
    "Constant",
    "Constants",
    "Dc",
    "DynamicWdAdagrad",
    "FilterKind",
    "FixedR8",
    "Fp16",
    "Fp32",
    "Ftrl",
    "GroupAdagrad",
    "GroupFtrl",
    "Initializer",
    "LinearWarmup",
    "Momentum",
    "MovingAverage",
    "OneBit",
    "Ones",
    "Optimizer",
    "PolynomialDecay",
    "RandomUniform",
    "Rmsprop",
    "RmspropV2",
    "Schedule",
    "Segment",
    "Sgd",
    "StochasticRoundingFloat16",
    "TableConfig",
    "VariableConfig",
    "Zeros",
]


@dataclass(frozen=True, slots=True)
class Segment:
    """One slice of a row: how it starts, moves, how fast, and how serving stores it."""

    dim: int
    initializer: Initializer = field(default_factory=Zeros)
    optimizer: Optimizer = field(default_factory=Adagrad)
    compressor: Compressor = field(default_factory=Fp32)
    schedule: Schedule | None = None  # None: the optimizer's own learning rate, after its warm-up

    def __post_init__(self) -> None:
        require(1 <= self.dim <= 65536, f"segment: dim {self.dim} is outside 1..65536")


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A table: a name, the slices of its rows, in order, and the rules for which rows it keeps."""

    name: str
    segments: tuple[Segment, ...]
    # Days of data time without an update after which a row may be dropped, and exceptions by slot (fid bits 48..62).
    expire_days: int = 36500
    expire_days_by_slot: Mapping[int, int] = field(default_factory=dict)
    # Bytes of index and rows that the table never exceeds; 0 is no limit. At the limit new ids are refused.
    memory_budget_bytes: int = 0
    # One expiry drops at most this share of the rows, the longest overdue first: a jump of the data's clock, or one
    # wrong timestamp, then cannot empty the table.
    max_expire_share: float = 1.0
    # Rows to make room for at once; more saves growing, unused ones cost 20 bytes each.
    initial_capacity: int = 1
    # Random initializers depend on it and the id alone, so a row starts the same on any server.
    seed: int = 0
    # Which new ids get a row; None admits every id.
    admission: AdmissionConfig | None = None
    # Rows of a push with NaN or infinity: refuse the whole push, or leave them out and count them.
    skip_nonfinite: bool = False
    # Ids changed by gradients that are remembered until somebody asks for them, 32 bytes each; 0 does not track them.
    # When more change meanwhile the set starts over and counts what it forgot.
    touched_capacity: int = 0

    def __post_init__(self) -> None:
        require(bool(self.name), "table: the name is empty")
        require(bool(self.segments), f"table {self.name}: it has no segments")
        for slot, days in {-1: self.expire_days, **self.expire_days_by_slot}.items():
            require(-1 <= slot < NUM_SLOTS, f"table {self.name}: slot {slot} is outside 0..{NUM_SLOTS - 1}")
            require(0 <= days <= 10**6, f"table {self.name}: expire_days {days} is outside 0..1000000")
        require(self.memory_budget_bytes >= 0, f"table {self.name}: memory_budget_bytes is negative")
        require(0 < self.max_expire_share <= 1, f"table {self.name}: max_expire_share is outside (0, 1]")
        if self.admission is not None:
            self.admission.thresholds()
        require(0 <= self.touched_capacity < 2**40, f"table {self.name}: touched_capacity is outside 0..2^40-1")
        require(0 <= self.initial_capacity <= 2**32 - 2, f"table {self.name}: initial_capacity is outside 0..2^32-2")

    def learning_rates(self, step: int) -> NDArray[np.float32]:
        """One rate per segment at `step`: what an update takes."""
        return learning_rates([s.schedule or default_schedule(s.optimizer) for s in self.segments], step)

    @property
    def dim(self) -> int:
        """Floats of a row that a pull returns."""
        return sum(segment.dim for segment in self.segments)


@dataclass(frozen=True, slots=True)
class VariableConfig:
    """A dense variable: where it starts and, if it takes gradients, how it moves."""

    name: str
    initial: NDArray[Any]
    optimizer: Optimizer | None = None

    def __post_init__(self) -> None:
        require(bool(self.name), "variable: the name is empty")
        require(
            self.initial.dtype in (np.float32, np.int64),
            f"variable {self.name}: dtype {self.initial.dtype} is neither float32 nor int64",
        )
        require(bool(np.isfinite(self.initial).all()), f"variable {self.name}: the initial value is not finite")
        require(
            self.optimizer is None or isinstance(self.optimizer, Sgd | Adagrad),
            f"variable {self.name}: a variable takes sgd or adagrad, not {self.optimizer and self.optimizer.name}",
        )
        require(
            self.optimizer is None or self.initial.dtype == np.float32,
            f"variable {self.name}: only float32 variables take gradients, this one is {self.initial.dtype}",
        )
