"""What members report to the controller, and what status tells of it: one class for each report.

`wire.codec` turns them into messages and back. The fields have the names of the messages in
coordination.proto, which says what each one means.
"""

from dataclasses import dataclass, field


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
