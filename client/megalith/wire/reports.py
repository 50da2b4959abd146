"""What members report to the controller, and what status tells of it: one class for each report.

`wire.codec` turns them into messages and back. The fields have the names of the messages in
coordination.proto, which says what each one means.
"""

from dataclasses import dataclass, field
from typing import Self

from megalith.wire.pieces import PieceProgress


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What one ps took out of a checkpoint when it started. No `path` = it started empty."""

    path: str = ""
    step: int = 0
    rows: int = 0
    expired: int = 0
    left_out: int = 0
    seconds: float = 0.0
    tables: int = 0
    variables: int = 0
    saved_at_s: float = 0.0
    filters_reset: int = 0  # admission filters that did not fit; their ids are counted anew
    increments: int = 0


@dataclass(frozen=True, slots=True)
class InputCounts:
    """What the input of a worker has left out. The fields are those of `WorkerReport`."""

    skipped_messages: int = 0  # of a topic: gone, or not readable
    late_files: int = 0  # they came after their hour was closed, or went before they were read


@dataclass(frozen=True, slots=True)
class HookErrors:
    """Hooks that raised while training went on. The fields are those of `WorkerReport`."""

    hook_errors: int = 0  # calls
    hook_failures: tuple[str, ...] = ()  # each hook and moment that raised, and its first error


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """How far a worker is."""

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
    cursor: bytes = b""  # opaque: only the reader of the worker's input looks into it
    metrics: dict[str, float] = field(default_factory=dict)
    req_time_s: int = 0
    skipped_batches: int = 0
    skipped_messages: int = 0
    late_files: int = 0
    pieces: tuple[PieceProgress, ...] = ()  # that it holds, of an input that is handed out
    is_share_over: bool = False
    hook_errors: int = 0
    hook_failures: tuple[str, ...] = ()
    stop_reason: str = ""  # why a hook ended its share, for people; empty = none did
    missing_values: int = 0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a worker has read or found and not trained, and what trained examples lack.

    The fields are those of `WorkerReport`.
    """

    skipped_batches: int = 0
    skipped_messages: int = 0
    late_files: int = 0
    missing_values: int = 0

    @classmethod
    def of(cls, report: WorkerReport) -> Self:
        return cls(
            report.skipped_batches,
            report.skipped_messages,
            report.late_files,
            report.missing_values,
        )

    def __add__(self, other: "LeftOut") -> "LeftOut":
        return LeftOut(
            self.skipped_batches + other.skipped_batches,
            self.skipped_messages + other.skipped_messages,
            self.late_files + other.late_files,
            self.missing_values + other.missing_values,
        )


@dataclass(frozen=True, slots=True)
class PsReport:
    """What a parameter server holds, and how it does."""

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
    restored: RestoreReport | None = None  # None until it is ready
    tables: int = 0
    variables: int = 0
    dropped_tables: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableFreshness:
    """Of a table at a replica: seconds from an update, and from its data, until it was visible."""

    table: str = ""
    p50_s: float = 0.0
    p99_s: float = 0.0
    event_p50_s: float = 0.0
    event_p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a serving replica holds, and how fresh it is."""

    index: int = 0
    address: str = ""
    metrics_address: str = ""
    is_ready: bool = False
    rows: int = 0
    bytes: int = 0
    staleness_s: float = 0.0
    freshness_p50_s: float = 0.0
    freshness_p99_s: float = 0.0
    event_p50_s: float = 0.0
    event_p99_s: float = 0.0
    tables: tuple[TableFreshness, ...] = ()
    share_index: int = 0
    share_count: int = 0
    complaint: str = ""
    pid: int = 0
    host: str = ""
    started_from: str = ""
    hold: str = ""

    @property
    def name(self) -> str:
        """Its name in messages and logs: `replica-0`."""
        return f"replica-{self.index}"
