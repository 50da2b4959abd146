"""What a table and a variable look like: plain values that the SDK builds, the wire carries and a ps obeys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.wire.admission import NUM_SLOTS, AdmissionConfig, FilterKind
from megalith.wire.compressors import Compressor, FixedR8, Fp16, Fp32, OneBit
from megalith.wire.dense_optimizers import (
    Adamom,
    DenseOptimizer,
    DenseRmsprop,
    DenseRmspropV2,
    Shampoo,
)
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
from megalith.wire.schedules import (
    Constant,
    LinearWarmup,
    PolynomialDecay,
    Schedule,
    default_schedule,
    learning_rates,
)
from megalith.wire.validation import check_kind, require
from megalith.wire.variable_parts import Part, is_part_key, key_of, num_parts, parts_of

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamom",
    "AdmissionConfig",
    "Amsgrad",
    "BatchSoftmax",
    "Compressor",
    "Constant",
    "Constants",
    "Dc",
    "DenseOptimizer",
    "DenseRmsprop",
    "DenseRmspropV2",
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
    "Part",
    "PolynomialDecay",
    "RandomUniform",
    "Rmsprop",
    "RmspropV2",
    "Schedule",
    "Segment",
    "Sgd",
    "Shampoo",
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
        is_width = isinstance(self.dim, Integral) and 1 <= self.dim <= 65536
        require(is_width, f"segment: dim {self.dim!r} is outside 1..65536")
        check_kind("segment", "initializer", self.initializer, Initializer)
        check_kind("segment", "optimizer", self.optimizer, Optimizer)
        check_kind("segment", "compressor", self.compressor, Compressor)
        check_kind("segment", "schedule", self.schedule, Schedule | None)


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
        require(isinstance(self.name, str), f"table: the name {self.name!r} is no text")
        require(bool(self.name), "table: the name is empty")
        if isinstance(self.segments, list):
            object.__setattr__(
                self, "segments", tuple(self.segments)
            )  # so that equal tables are equal
        are_segments = isinstance(self.segments, tuple) and all(
            isinstance(each, Segment) for each in self.segments
        )
        require(are_segments, f"table {self.name}: {self.segments!r} is not a tuple of segments")
        require(bool(self.segments), f"table {self.name}: it has no segments")
        for slot, days in {-1: self.expire_days, **self.expire_days_by_slot}.items():
            require(
                -1 <= slot < NUM_SLOTS,
                f"table {self.name}: slot {slot} is outside 0..{NUM_SLOTS - 1}",
            )
            require(
                0 <= days <= 10**6, f"table {self.name}: expire_days {days} is outside 0..1000000"
            )
        require(
            self.memory_budget_bytes >= 0, f"table {self.name}: memory_budget_bytes is negative"
        )
        require(
            0 < self.max_expire_share <= 1, f"table {self.name}: max_expire_share is outside (0, 1]"
        )
        if self.admission is not None:
            self.admission.thresholds()
        require(
            0 <= self.touched_capacity < 2**40,
            f"table {self.name}: touched_capacity is outside 0..2^40-1",
        )
        require(
            0 <= self.initial_capacity <= 2**32 - 2,
            f"table {self.name}: initial_capacity is outside 0..2^32-2",
        )

    def learning_rates(self, step: int) -> NDArray[np.float32]:
        """One rate per segment at `step`: what an update takes."""
        return learning_rates(
            [s.schedule or default_schedule(s.optimizer) for s in self.segments], step
        )

    @property
    def dim(self) -> int:
        """Floats of a row that a pull returns."""
        return sum(segment.dim for segment in self.segments)


_MAX_SHAMPOO_EXTENT = 4096  # two matrices of 64 MB, and an eigenvalue problem of minutes beyond it


@dataclass(frozen=True, slots=True)
class VariableConfig:
    """A dense variable: where it starts and, if it takes gradients, how it moves."""

    name: str
    initial: NDArray[Any]
    optimizer: DenseOptimizer | None = None
    schedule: Schedule | None = None  # None: the optimizer's own learning rate, after its warm-up
    part: Part | None = (
        None  # which rows of the variable `initial` holds; None: all. Set by `split`
    )

    def __post_init__(self) -> None:
        require(isinstance(self.name, str), f"variable: the name {self.name!r} is no text")
        require(bool(self.name), "variable: the name is empty")
        require(
            not is_part_key(self.name),
            f"variable {self.name}: a name that ends in @<n>/<n> means a part of one",
        )
        require(
            isinstance(self.initial, np.ndarray) and self.initial.dtype in (np.float32, np.int64),
            f"variable {self.name}: the initial value is {_described(self.initial)}, not an array of float32 or int64",
        )
        require(
            bool(np.isfinite(self.initial).all()),
            f"variable {self.name}: the initial value is not finite",
        )
        check_kind(f"variable {self.name}", "schedule", self.schedule, Schedule | None)
        if self.part is not None:
            self._check_part(self.part)
        if self.optimizer is not None:
            self._check_optimizer(self.optimizer)

    @property
    def key(self) -> str:
        """How requests name it."""
        return key_of(self.name, self.part)

    def learning_rate(self, step: int) -> np.float32:
        """What a gradient at `step` is multiplied by; 0 without an optimizer."""
        if self.optimizer is None:
            return np.float32(0)
        return np.float32((self.schedule or default_schedule(self.optimizer)).at(step))

    def split(self, num_ps: int) -> list["VariableConfig"]:
        """The parts that `num_ps` servers hold, in order; shampoo, whose steps join all rows, stays whole."""
        count = num_parts(self.initial.shape, self.initial.itemsize, num_ps)
        if count == 1 or isinstance(self.optimizer, Shampoo):
            return [self]
        return [
            VariableConfig(
                self.name, self.initial[part.start : part.stop], self.optimizer, self.schedule, part
            )
            for part in parts_of(len(self.initial), count)
            if part is not None
        ]

    def _check_part(self, part: Part) -> None:
        extent = self.initial.shape[0] if self.initial.ndim else 0
        require(
            extent == part.stop - part.start,
            f"variable {self.name}: part {part.index} of {part.count} has {extent} rows, not {part.stop - part.start}",
        )
        require(
            not isinstance(self.optimizer, Shampoo),
            f"variable {self.name}: shampoo does not work on parts",
        )

    def _check_optimizer(self, optimizer: DenseOptimizer) -> None:
        require(
            isinstance(optimizer, DenseOptimizer),
            f"variable {self.name}: {_described(optimizer)} moves rows of a table; a variable takes Sgd, Momentum, "
            "Adagrad, Adam, Adamom, DenseRmsprop, DenseRmspropV2 or Shampoo",
        )
        require(
            self.initial.dtype == np.float32 and self.initial.size > 0,
            f"variable {self.name}: only float32 variables with elements take gradients, "
            f"this one is {_described(self.initial)}",
        )
        require(
            not isinstance(optimizer, Shampoo)
            or max(self.initial.shape, default=0) <= _MAX_SHAMPOO_EXTENT,
            f"variable {self.name}: shampoo takes axes of up to {_MAX_SHAMPOO_EXTENT}, "
            f"the shape is {list(self.initial.shape)}",
        )


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {list(value.shape)}"
    return type(value).__name__
