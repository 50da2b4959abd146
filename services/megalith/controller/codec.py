"""Controller values to and from protobuf messages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from megalith.checkpoint.format import FileKind
from megalith.checkpoint.layout.manifest import ShardFile
from megalith.controller.members.barrier import BarrierState, HolderKind
from megalith.controller.members.directives import ClusterState, Phase, SaveShard
from megalith.controller.members.journal import MAX_COUNT
from megalith.controller.members.losses import Loss
from megalith.controller.members.piece_book import MOST_HELD
from megalith.controller.members.roster import Registration, Role, Seat, Standing
from megalith.controller.replicas import HeardReplica
from megalith.controller.saving.records import SaveRecord
from megalith.controller.saving.whole_model import ShardSaved
from megalith.controller.selection.offers import CandidateStatus
from megalith.errors import InvalidRequest
from megalith.protos import common_pb2, coordination_pb2
from megalith.runtime.joining.membership import MAX_HEARTBEAT_S
from megalith.schema.variable_parts import is_part_name
from megalith.wire import addresses, codec, piece_codec
from megalith.wire.pieces import PieceCounts, PieceRequest
from megalith.wire.reports import PsReport, WorkerReport

_MAX_CURSOR = 65536  # bytes; it is told to every member and kept in each checkpoint
_MAX_TEXT = 4096  # of what a member says of itself; it is kept, journaled and told to others
_MAX_RESULTS = 1024
_MAX_FOUND = 1024  # files that one request says are found
_MAX_PIECES = 2 * MOST_HELD  # that one worker says something of: held ones, and some that are lost
_MAX_FAILURES = 256  # hooks that one worker says have raised
_MAX_REASON = 1024  # of the end of a job; it is journaled and part of every status

_ROLES = {common_pb2.ROLE_PS: Role.PS, common_pb2.ROLE_WORKER: Role.WORKER}
_ROLE_TAGS = {role: tag for tag, role in _ROLES.items()}
_PHASES = {
    Phase.FORMING: coordination_pb2.PHASE_FORMING,
    Phase.INITIALIZING: coordination_pb2.PHASE_INITIALIZING,
    Phase.RUNNING: coordination_pb2.PHASE_RUNNING,
    Phase.FINISHED: coordination_pb2.PHASE_FINISHED,
}
_STANDINGS = {
    Standing.EXPECTED: coordination_pb2.STANDING_EXPECTED,
    Standing.ALIVE: coordination_pb2.STANDING_ALIVE,
    Standing.SUSPECT: coordination_pb2.STANDING_SUSPECT,
    Standing.DEAD: coordination_pb2.STANDING_DEAD,
}


def decode_registration(message: coordination_pb2.Register) -> Registration:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"register: unknown role {message.role}")
    if not message.address or not message.incarnation:
        raise InvalidRequest("register: address and incarnation must be given")

    addresses.split(message.address)
    if message.metrics_address:
        addresses.split(message.metrics_address)

    if not 0 <= message.heartbeat_s <= MAX_HEARTBEAT_S:
        raise InvalidRequest(
            f"register: heartbeat_s={message.heartbeat_s}: outside 0..{MAX_HEARTBEAT_S:.0f}; "
            "its death goes unnoticed"
        )

    for name in ("incarnation", "job", "run_id", "address", "metrics_address", "host"):
        _check_length(f"register: {name}", getattr(message, name))

    for name in (
        "epoch",
        "initialized_epoch",
        "global_step",
        "first_step",
        "held_shard",
        "num_ps",
        "pid",
    ):
        _check_count(f"register: {name}", getattr(message, name))

    return Registration(
        role=role,
        index=message.index,
        address=message.address,
        metrics_address=message.metrics_address,
        incarnation=message.incarnation,
        epoch=message.epoch,
        initialized_epoch=message.initialized_epoch,
        num_ps=message.num_ps,
        heartbeat_s=message.heartbeat_s,
        job=message.job,
        global_step=message.global_step,
        first_step=message.first_step if message.HasField("first_step") else None,
        held_shard=message.held_shard if message.HasField("held_shard") else None,
        pid=message.pid,
        host=message.host,
        run_id=message.run_id,
        has_lease=message.has_lease,
    )


def _check_count(name: str, value: int) -> None:
    if not 0 <= value < MAX_COUNT:
        raise InvalidRequest(f"{name}={value}: outside 0..{MAX_COUNT - 1}")


def _check_length(name: str, value: str) -> None:
    if len(value) > _MAX_TEXT:
        raise InvalidRequest(f"{name}: {len(value)} characters, at most {_MAX_TEXT} are taken")


def decode_worker_report(message: coordination_pb2.WorkerReport) -> WorkerReport:
    for name in (
        "global_step",
        "position",
        "total_batches",
        "examples",
        "initialized_epoch",
        "barrier_id",
        "failovers",
        "pushes_unknown",
        "req_time_s",
        "skipped_batches",
        "skipped_messages",
        "late_files",
        "missing_values",
        "hook_errors",
    ):
        _check_count(f"worker report: {name}", getattr(message, name))

    if len(message.cursor) > _MAX_CURSOR:
        raise InvalidRequest(
            f"worker report: a cursor has {len(message.cursor)} bytes, "
            f"at most {_MAX_CURSOR} are taken"
        )

    _check_progress(message.pieces)
    for what, figures in (("results", message.results), ("metrics", message.metrics)):
        if len(figures) > _MAX_RESULTS:
            raise InvalidRequest(
                f"worker report: {len(figures)} {what}, at most {_MAX_RESULTS} are taken"
            )

        for name in figures:
            _check_length(f"worker report: a name among the {what}", name)

    if len(message.hook_failures) > _MAX_FAILURES:
        raise InvalidRequest(
            f"worker report: {len(message.hook_failures)} failures of hooks, "
            f"at most {_MAX_FAILURES} are taken"
        )

    for failure in message.hook_failures:
        _check_length("worker report: a failure of a hook", failure)

    _check_length("worker report: stop_reason", message.stop_reason)

    return codec.worker_report_from_proto(message)


def decode_piece_request(message: coordination_pb2.TakePiecesRequest) -> PieceRequest:
    for name in ("index", "total", "most"):
        _check_count(f"pieces: {name}", getattr(message, name))

    _check_length("pieces: incarnation", message.incarnation)
    _check_length("pieces: of", message.of)
    if not message.incarnation or not message.of:
        raise InvalidRequest("pieces: incarnation and of must be given")
    if len(message.found) > _MAX_FOUND:
        raise InvalidRequest(
            f"pieces: {len(message.found)} files are found, at most {_MAX_FOUND} are taken at once"
        )

    for file in message.found:
        _check_length("pieces: a path", file.path)
        _check_count(f"pieces: hour of {file.path}", file.hour)

    _check_progress(message.progress)
    return piece_codec.request_from_proto(message)


def _check_progress(progress: Sequence[coordination_pb2.PieceProgress]) -> None:
    if len(progress) > _MAX_PIECES:
        raise InvalidRequest(
            f"pieces: {len(progress)} are held by one worker, at most {_MAX_PIECES} are taken"
        )

    for each in progress:
        _check_count("pieces: number", each.number)
        _check_count(f"pieces: offset of {each.number}", each.offset)


def decode_ps_report(message: coordination_pb2.PsReport) -> PsReport:
    for name in (
        "rows",
        "bytes",
        "pulls",
        "pushes",
        "resident_bytes",
        "memory_limit_bytes",
        "tables",
        "variables",
    ):
        _check_count(f"ps report: {name}", getattr(message, name))

    _check_length("ps report: complaint", message.complaint)
    return codec.ps_report_from_proto(message)


def decode_reason(reason: str) -> str:
    """Why a job ends. A long one is cut and not refused, because the job is to end all the same."""
    if len(reason) <= _MAX_REASON:
        return reason

    return f"{reason[:_MAX_REASON]}... ({len(reason)} characters)"


def decode_shard_saved(message: coordination_pb2.ShardSaved) -> ShardSaved:
    _check_count("saved shard: pushes", message.pushes)
    for name in message.parts:
        if not is_part_name(name):
            raise InvalidRequest(f"saved shard: {name!r} is no part of a variable")

    return ShardSaved(
        save_id=message.save_id,
        files=_decode_files(message.files),
        parts=tuple(message.parts),
        error=message.error,
        pushes=message.pushes,
        changes_forgotten=message.changes_forgotten,
        changes_not_noted=message.changes_not_noted,
        layouts=dict(message.layouts),
    )


def _decode_files(messages: Iterable[coordination_pb2.ShardFile]) -> list[ShardFile]:
    files = []
    for message in messages:
        if message.kind not in list(FileKind):
            raise InvalidRequest(f"saved shard: {message.name} is of unknown kind {message.kind!r}")

        file = ShardFile(
            name=message.name,
            kind=FileKind(message.kind),
            table=message.table,
            rows=message.rows,
            bytes=message.bytes,
            sha256=message.sha256,
            buckets=message.buckets,
            held=message.held,
            through=message.through,
            blocks=tuple(message.blocks),
        )

        files.append(file)

    return files


def encode_phase(phase: Phase) -> "coordination_pb2.Phase.ValueType":
    return _PHASES[phase]


def encode_state(state: ClusterState) -> coordination_pb2.ClusterState:
    message = coordination_pb2.ClusterState(
        phase=encode_phase(state.phase),
        barrier=encode_barrier(state.barrier),
        finished_workers=state.finished_workers,
        positions=state.positions,
        global_step=state.global_step,
        first_step=state.first_step,
        is_saved=state.is_saved,
        cursors=state.cursors,
        first_cursors=state.first_cursors,
    )

    if state.routing is not None:
        message.routing.CopyFrom(codec.routing_to_proto(state.routing))

    return message


def encode_barrier(barrier: BarrierState) -> coordination_pb2.Barrier:
    return coordination_pb2.Barrier(
        id=barrier.id,
        is_placed=barrier.is_placed,
        action=barrier.action,
        reason=barrier.reason,
        holders=[
            coordination_pb2.Barrier.Holder(
                id=holder.id, kind=holder.kind.value, action=holder.action, reason=holder.reason
            )
            for holder in barrier.holders
        ],
    )


def decode_holder(kind: str) -> HolderKind:
    """The holder that an operator's call names; one that only the controller may be is refused."""
    if kind in ("", HolderKind.OPERATOR.value):
        return HolderKind.OPERATOR
    if kind == HolderKind.PLATFORM.value:
        return HolderKind.PLATFORM

    raise InvalidRequest(
        f"holder {kind!r}: training is held for an operator or the platform; leave it empty"
    )


def encode_save_order(order: SaveShard) -> coordination_pb2.SaveShard:
    message = coordination_pb2.SaveShard(
        save_id=order.save_id,
        directory=order.directory,
        step=order.step,
        dense_only=order.dense_only,
        timeout_s=order.timeout_s,
    )
    if order.base:
        message.increment.base = order.base
        message.increment.number = order.number

    return message


def encode_loss(loss: Loss) -> coordination_pb2.Loss:
    return coordination_pb2.Loss(at_s=loss.at_s, rows=loss.rows, what=loss.what)


def encode_piece_counts(counts: PieceCounts) -> coordination_pb2.PieceCounts:
    return coordination_pb2.PieceCounts(
        total=counts.total,
        done=counts.done,
        held=counts.held,
        returned=counts.returned,
        is_followed=counts.is_followed,
    )


def encode_replica(heard: HeardReplica) -> coordination_pb2.ReplicaStatus:
    return coordination_pb2.ReplicaStatus(
        report=codec.replica_report_to_proto(heard.report), silent_s=heard.silent_s
    )


def encode_save(record: SaveRecord) -> coordination_pb2.LastSave:
    return coordination_pb2.LastSave(
        ended_at_s=record.ended_at_s,
        seconds=record.seconds,
        step=record.step,
        path=record.path,
        error=record.error,
        rows=record.rows,
        bytes=record.bytes,
        removed=record.removed,
    )


def encode_seat(
    seat: Seat, standing: Standing, silent_s: float, buckets: Mapping[int, int]
) -> coordination_pb2.MemberStatus:
    """`buckets` counts the map's buckets by ps index."""
    message = coordination_pb2.MemberStatus(
        role=_ROLE_TAGS[seat.role],
        index=seat.index,
        address=seat.address,
        metrics_address=seat.metrics_address,
        is_connected=seat.is_connected,
        silent_s=silent_s,
        standing=_STANDINGS[standing],
        pid=seat.pid,
        host=seat.host,
        buckets=buckets.get(seat.index, 0) if seat.role is Role.PS else 0,
    )

    if seat.role is Role.WORKER:
        progress = replace(seat.progress, **asdict(seat.left_out))
        message.worker.CopyFrom(codec.worker_report_to_proto(progress))
        message.examples_before = seat.examples_before
    else:
        message.ps.CopyFrom(codec.ps_report_to_proto(seat.load))

    return message


def encode_candidate(candidate: CandidateStatus) -> coordination_pb2.PsCandidate:
    return coordination_pb2.PsCandidate(
        index=candidate.index,
        address=candidate.address,
        is_connected=candidate.is_connected,
        shard=candidate.shard,
        rows_per_s=candidate.rows_per_s,
    )
