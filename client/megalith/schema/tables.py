"""What a table is: the segments of its rows, and the rules for which rows it keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from megalith.schema.admission import NUM_SLOTS, AdmissionConfig
from megalith.schema.checks import check_kind, require
from megalith.schema.compressors import Compressor, Fp32
from megalith.schema.initializers import Initializer, Zeros
from megalith.schema.optimizers import Adagrad, Optimizer
from megalith.schema.schedules import Schedule, default_schedule, learning_rates


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a row: how it starts, how and how fast it moves, and how serving stores it."""

    dim: int
    initializer: Initializer = field(default_factory=Zeros)
    optimizer: Optimizer = field(default_factory=Adagrad)
    compressor: Compressor = field(default_factory=Fp32)
    schedule: Schedule | None = None  # None: the optimizer's own learning rate, after its warm-up

    def __post_init__(self) -> None:
        is_width = isinstance(self.dim, Integral) and 1 <= self.dim <= 65536
        require(
            is_width,
            f"segment: dim {self.dim!r} is outside 1..65536",
        )

        check_kind("segment", "initializer", self.initializer, Initializer)
        check_kind("segment", "optimizer", self.optimizer, Optimizer)
        check_kind("segment", "compressor", self.compressor, Compressor)
        check_kind("segment", "schedule", self.schedule, Schedule | None)


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A table: a name, the segments of its rows, in order, and the rules for the rows it keeps."""

    name: str
    segments: tuple[Segment, ...]
    # Days of data time without an update after which a row may be dropped, and exceptions by slot
    # (fid bits 48..62).
    expire_days: int = 36500
    expire_days_by_slot: Mapping[int, int] = field(default_factory=dict)
    # Bytes of index and rows that the table never exceeds; 0 is no limit. At the limit new ids are
    # refused.
    memory_budget_bytes: int = 0
    # One expiry drops at most this share of the rows, the longest overdue first: a jump of the
    # data's clock, or one wrong timestamp, then cannot empty the table.
    max_expire_share: float = 1.0
    # Rows to make room for at once; more saves growing, unused ones cost 20 bytes each.
    initial_capacity: int = 1
    # Random initializers depend on it and the id alone, so a row starts the same on any server.
    seed: int = 0
    # Which new ids get a row; None admits every id.
    admission: AdmissionConfig | None = None
    # Rows of a push with NaN or infinity: refuse the whole push, or leave them out and count them.
    skip_nonfinite: bool = False
    # Changed ids that the delta log holds, 8 bytes each, for increments and whoever follows
    # the table. If more change between two increments, the next one is a full save. 0 = no log.
    touched_capacity: int = 1 << 23

    # Names of the features whose rows it has, for people: a table of merged features is named by a
    # hash.
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(isinstance(self.name, str), f"table: the name {self.name!r} is no text")
        require(bool(self.name), "table: the name is empty")

        self._check_segments()
        self._check_expiry()
        if self.admission is not None:
            self.admission.thresholds()

        self._require(self.memory_budget_bytes >= 0, "memory_budget_bytes is negative")
        self._require(
            0 <= self.touched_capacity < 2**40,
            "touched_capacity is outside 0..2^40-1",
        )

        self._require(
            0 <= self.initial_capacity <= 2**32 - 2,
            "initial_capacity is outside 0..2^32-2",
        )

    def _check_segments(self) -> None:
        if isinstance(self.segments, list):
            # A tuple, so that equal tables are equal.
            object.__setattr__(self, "segments", tuple(self.segments))

        are_segments = isinstance(self.segments, tuple)
        if are_segments:
            are_segments = all(isinstance(each, Segment) for each in self.segments)

        self._require(are_segments, f"{self.segments!r} is not a tuple of segments")
        self._require(bool(self.segments), "it has no segments")

    def _check_expiry(self) -> None:
        for slot in self.expire_days_by_slot:
            self._require(
                0 <= slot < NUM_SLOTS,
                f"slot {slot} is outside 0..{NUM_SLOTS - 1}",
            )

        for days in (self.expire_days, *self.expire_days_by_slot.values()):
            self._require(
                0 <= days <= 10**6,
                f"expire_days {days} is outside 0..1000000",
            )

        self._require(
            0 < self.max_expire_share <= 1,
            "max_expire_share is outside (0, 1]",
        )

    def _require(self, condition: bool, message: str) -> None:
        require(condition, f"table {self.name}: {message}")

    def learning_rates(self, step: int) -> NDArray[np.float32]:
        """One rate per segment at `step`: what an update takes."""
        schedules = []
        for segment in self.segments:
            schedule = segment.schedule or default_schedule(segment.optimizer)
            schedules.append(schedule)

        return learning_rates(schedules, step)

    @property
    def dim(self) -> int:
        """Floats of a row that a pull returns."""
        return sum(segment.dim for segment in self.segments)
