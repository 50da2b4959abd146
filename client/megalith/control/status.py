"""What a controller reports, as values, and how its messages become them."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from megalith.protos import common_pb2, coordination_pb2
from megalith.wire import codec
from megalith.wire.pieces import PieceCounts
from megalith.wire.reports import PsReport, ReplicaReport, RestoreReport, WorkerReport

_ROLES = {common_pb2.ROLE_PS: "ps", common_pb2.ROLE_WORKER: "worker"}


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One seat of the cluster, and who holds it. Fields of the other role stay 0."""

    role: str
    index: int
    address: str
    metrics_address: str
    is_connected: bool
    silent_s: float
    standing: str
    rows: int = 0
    bytes: int = 0
    is_ready: bool = False
    buckets: int = 0
    requests_per_s: float = 0.0
    p99_s: float = 0.0
    resident_bytes: int = 0
    memory_limit_bytes: int = 0
    complaint: str = ""
    global_step: int = 0
    position: int = 0
    total_batches: int = 0
    examples: int = 0  # workers: trained by this process
    examples_before: int = 0  # workers: by earlier ones of this seat, as far as they had reported
    examples_per_s: float = 0.0
    loss: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)  # of recent steps, by name
    is_blocked: bool = False
    is_finished: bool = False
    failovers: int = 0
    pid: int = 0
    host: str = ""
    pushes_unknown: int = 0
    req_time_s: int = 0  # workers: the Unix time of the data that was last trained
    # Workers: read and not trained; this and the next three by all processes of this seat
    skipped_batches: int = 0
    skipped_messages: int = 0  # workers: of a topic, gone or not readable
    late_files: int = 0  # workers: came after their hour was closed, or went too early
    missing_values: int = 0  # workers: of trained examples, as far as the task counts them
    hook_errors: int = 0  # workers: calls of hooks that raised, while training went on
    hook_failures: tuple[str, ...] = ()  # workers: each such hook and moment, and its first error
    stop_reason: str = ""  # workers: why a hook ended its share; empty = none did
    restored: RestoreReport | None = None  # parameter servers: None until it is ready

    @property
    def name(self) -> str:
        """Its name in messages and logs: `ps-0`, `worker-1`."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class BarrierHolder:
    """One of those who hold training.

    `kind` is "operator", "save", "health", "platform" or "action" (a stop by file).
    """

    kind: str
    reason: str
    action: str
    id: int


@dataclass(frozen=True, slots=True)
class BarrierStatus:
    """Whether training is held, and by whom.

    `action` and `reason` are those of whoever has held it longest; `holders` lists everybody. `id`
    is the number of the newest hold, counted over the whole job.
    """

    id: int
    is_placed: bool
    action: str
    reason: str
    holders: tuple[BarrierHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class LastSave:
    """How the last save of this controller went.

    `path` is empty when it failed, `error` when it did not.
    """

    ended_at_s: float
    seconds: float
    step: int
    path: str
    error: str
    rows: int = 0
    bytes: int = 0
    removed: tuple[str, ...] = ()  # older checkpoints that are not kept


@dataclass(frozen=True, slots=True)
class SaveProgress:
    """A save that is under way.

    `bytes` are written so far; `rows` are those that the ps hold, about as many as will be in it.
    """

    step: int
    seconds: float
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class PsCandidate:
    """A parameter server among more than the map needs."""

    index: int
    address: str
    is_connected: bool
    shard: int | None  # None = it stands by
    rows_per_s: float  # as the workers measured it; 0 = not measured

    @property
    def name(self) -> str:
        """The name of the process: `ps-2`."""
        return f"ps-{self.index}"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A serving replica: its last report, and how long ago it came.

    The report's staleness has grown by that time: nobody knows whether the replica goes on.
    """

    report: ReplicaReport
    silent_s: float


@dataclass(frozen=True, slots=True)
class LossReport:
    """Something that was trained and is lost. `at_s` is Unix time.

    `rows` is 0 where only updates or batches are.
    """

    at_s: float
    rows: int
    what: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Everything the controller knows, at one moment. A next save that is not planned is None."""

    address: str
    model_dir: str
    phase: str
    epoch: int
    is_stopped: bool
    global_step: int
    last_checkpoint: str
    outcome: str
    reason: str
    results: dict[str, float]
    members: tuple[MemberStatus, ...]
    job: str
    up_s: float
    barrier: BarrierStatus
    last_save: LastSave | None
    next_save_s: float | None
    next_save_step: int | None
    candidates: tuple[PsCandidate, ...] = ()
    ending: str = ""  # why it ends, while it is saved for the last time
    unsaved: str = ""  # what no checkpoint holds, for people; empty = nothing
    rows_lost: int = 0
    pushes_unknown: int = 0
    run_id: str = ""
    losses: tuple[LossReport, ...] = ()
    # Why a restart of the controller would forget holds on training; empty = it would not.
    journal_error: str = ""
    saving: SaveProgress | None = None
    checkpoints_removed: int = 0  # by this controller, because they are not kept
    input: str = ""  # where the input of this run began, for people; empty = at its start
    metrics_address: str = ""  # of the controller's /metrics page
    replicas: tuple[ReplicaStatus, ...] = ()  # those that have reported lately
    # What this run took over of its checkpoint other than all of it, for people
    start_notes: tuple[str, ...] = ()
    last_dense_save: LastSave | None = None  # of variables alone
    increment_error: str = ""  # why the last increment failed; empty: it did not
    increments_fail_since_s: float = 0.0  # Unix seconds; 0: they do not
    planned_saves_wait: str = (
        ""  # why a planned save that is due would not be made; empty: it would
    )
    pieces: PieceCounts | None = None  # of an input that the controller hands out


@dataclass(frozen=True, slots=True)
class SaveResult:
    """A checkpoint that is complete.

    `moving_workers` are those that did not block in time, if the save was to hold training: the
    checkpoint may have a part of a step of theirs. `removed` are older checkpoints that are not
    kept any longer, and `removed_stopgap` is the one of them that was saved in place of an
    increment; empty if there is none.
    """

    path: str
    step: int
    rows: int
    moving_workers: tuple[int, ...] = ()
    bytes: int = 0
    seconds: float = 0.0
    removed: tuple[str, ...] = ()
    removed_stopgap: str = ""


def cluster_status(reply: coordination_pb2.GetStatusResponse) -> ClusterStatus:
    phase = coordination_pb2.Phase.Name(reply.phase)
    losses = (LossReport(loss.at_s, loss.rows, loss.what) for loss in reply.losses)
    return ClusterStatus(
        address=reply.address,
        model_dir=reply.model_dir,
        phase=phase.removeprefix("PHASE_").lower(),
        epoch=reply.epoch,
        is_stopped=reply.barrier.is_placed,
        global_step=reply.global_step,
        last_checkpoint=reply.last_checkpoint,
        outcome=reply.outcome,
        reason=reply.reason,
        results=dict(reply.results),
        members=tuple(_member(message) for message in reply.members),
        candidates=tuple(_candidate(message) for message in reply.candidates),
        job=reply.job,
        up_s=round(reply.up_s, 3),
        barrier=_barrier(reply.barrier),
        last_save=_last_save(reply.last_save) if reply.HasField("last_save") else None,
        next_save_s=round(reply.next_save_s, 3) if reply.next_save_s >= 0 else None,
        next_save_step=reply.next_save_step or None,
        ending=reply.ending,
        unsaved=reply.unsaved,
        rows_lost=reply.rows_lost,
        pushes_unknown=reply.pushes_unknown,
        run_id=reply.run_id,
        losses=tuple(losses),
        journal_error=reply.journal_error,
        increment_error=reply.increment_error,
        increments_fail_since_s=reply.increments_fail_since_s,
        planned_saves_wait=reply.planned_saves_wait,
        saving=_saving(reply.saving) if reply.HasField("saving") else None,
        checkpoints_removed=reply.checkpoints_removed,
        input=reply.input,
        metrics_address=reply.metrics_address,
        replicas=tuple(_replica(message) for message in reply.replicas),
        start_notes=tuple(reply.start_notes),
        last_dense_save=(
            _last_save(reply.last_dense_save) if reply.HasField("last_dense_save") else None
        ),
        pieces=_pieces(reply.pieces) if reply.HasField("pieces") else None,
    )


def _pieces(message: coordination_pb2.PieceCounts) -> PieceCounts:
    return PieceCounts(
        message.total, message.done, message.held, message.returned, message.is_followed
    )


def _replica(message: coordination_pb2.ReplicaStatus) -> ReplicaStatus:
    report = codec.replica_report_from_proto(message.report)
    silent_s = round(message.silent_s, 3)
    if report.is_ready:
        staleness_s = round(report.staleness_s + silent_s, 3)
        report = replace(report, staleness_s=staleness_s)

    return ReplicaStatus(report, silent_s)


def _barrier(message: coordination_pb2.Barrier) -> BarrierStatus:
    holders = tuple(
        BarrierHolder(holder.kind, holder.reason, holder.action, holder.id)
        for holder in message.holders
    )
    return BarrierStatus(message.id, message.is_placed, message.action, message.reason, holders)


def _candidate(message: coordination_pb2.PsCandidate) -> PsCandidate:
    shard = message.shard if message.HasField("shard") else None
    return PsCandidate(
        message.index, message.address, message.is_connected, shard, message.rows_per_s
    )


def _last_save(message: coordination_pb2.LastSave) -> LastSave:
    return LastSave(
        message.ended_at_s,
        round(message.seconds, 3),
        message.step,
        message.path,
        message.error,
        message.rows,
        message.bytes,
        tuple(message.removed),
    )


def _saving(message: coordination_pb2.SaveProgress) -> SaveProgress:
    return SaveProgress(message.step, round(message.seconds, 3), message.bytes, message.rows)


def _member(message: coordination_pb2.MemberStatus) -> MemberStatus:
    standing = coordination_pb2.Standing.Name(message.standing)
    common: dict[str, Any] = {
        "role": _ROLES.get(message.role, "unknown"),
        "index": message.index,
        "address": message.address,
        "metrics_address": message.metrics_address,
        "is_connected": message.is_connected,
        "silent_s": round(message.silent_s, 3),
        "standing": standing.removeprefix("STANDING_").lower(),
        "pid": message.pid,
        "host": message.host,
    }

    if message.role == common_pb2.ROLE_WORKER:
        worker = codec.worker_report_from_proto(message.worker)
        return MemberStatus(**common, **_shown(worker), examples_before=message.examples_before)

    ps = codec.ps_report_from_proto(message.ps)
    if ps.restored is not None:
        seconds = round(ps.restored.seconds, 3)
        ps = replace(ps, restored=replace(ps.restored, seconds=seconds))

    return MemberStatus(**common, **_shown(ps), buckets=message.buckets)


def _shown(report: WorkerReport | PsReport) -> dict[str, Any]:
    """The fields of a report that a status has too."""
    known = {each.name for each in fields(MemberStatus)}
    shown = {}
    for each in fields(report):
        if each.name in known:
            shown[each.name] = getattr(report, each.name)

    return shown
