"""Controller values to and from protobuf messages."""

import dataclasses
from collections.abc import Iterable, Mapping

from megalith.controller.barrier import BarrierState, HolderKind
from megalith.controller.directives import ClusterState, Phase
from megalith.controller.formation import CandidateStatus
from megalith.controller.journal import MAX_COUNT
from megalith.controller.roster import Place, PsLoad, Registration, Role, Standing, WorkerProgress
from megalith.controller.saves import SaveRecord
from megalith.controller.whole_model import ShardAnswer
from megalith.protos import common_pb2, coordination_pb2
from megalith.runtime import addresses
from megalith.runtime.manifest import Restored, ShardFile
from megalith.runtime.membership import MAX_HEARTBEAT_S
from megalith.wire import codec
from megalith.wire.errors import InvalidRequest
from megalith.wire.variable_parts import is_part_key

_MAX_TEXT = 4096  # of what a member says of itself; it is kept, journaled and told to others
_MAX_RESULTS = 1024

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
            f"register: heartbeat_s={message.heartbeat_s}: outside 0..{MAX_HEARTBEAT_S:.0f}; its death goes unnoticed"
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
        first_step=message.first_step - 1 if message.first_step else None,
        held_shard=message.held_shard - 1 if message.held_shard else None,
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


def decode_worker_report(message: coordination_pb2.WorkerReport) -> WorkerProgress:
    for name in (
        "global_step",
        "position",
        "total_batches",
        "examples",
        "initialized_epoch",
        "barrier_id",
        "failovers",
        "pushes_unknown",
    ):
        _check_count(f"worker report: {name}", getattr(message, name))
    if len(message.results) > _MAX_RESULTS:
        raise InvalidRequest(
            f"worker report: {len(message.results)} results, at most {_MAX_RESULTS} are taken"
        )
    for name in message.results:
        _check_length("worker report: the name of a result", name)
    return WorkerProgress(
        global_step=message.global_step,
        position=message.position,
        total_batches=message.total_batches,
        examples=message.examples,
        examples_per_s=message.examples_per_s,
        loss=message.loss,
        is_blocked=message.is_blocked,
        is_finished=message.is_finished,
        initialized_epoch=message.initialized_epoch,
        results=dict(message.results),
        barrier_id=message.barrier_id,
        has_begun=message.has_begun,
        failovers=message.failovers,
        pushes_unknown=message.pushes_unknown,
        is_trained=message.is_trained,
    )


def decode_ps_report(message: coordination_pb2.PsReport) -> PsLoad:
    values = {field.name: getattr(message, field.name) for field in dataclasses.fields(PsLoad)}
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
        if values[name] < 0:
            raise InvalidRequest(f"ps report: {name}={values[name]}: below 0")
    _check_length("ps report: complaint", message.complaint)
    values["restored"] = decode_restored(message.restored) if message.HasField("restored") else None
    return PsLoad(**values)


def decode_restored(message: coordination_pb2.Restored) -> Restored:
    return Restored(
        **{field.name: getattr(message, field.name) for field in dataclasses.fields(Restored)}
    )


def decode_shard(message: coordination_pb2.ShardSaved) -> ShardAnswer:
    for key in message.parts:
        if not is_part_key(key):
            raise InvalidRequest(f"saved shard: {key!r} is no part of a variable")
    return ShardAnswer(
        _decode_files(message.files), tuple(message.parts), message.error, message.pushes
    )


def _decode_files(messages: Iterable[coordination_pb2.ShardFile]) -> list[ShardFile]:
    names = [field.name for field in dataclasses.fields(ShardFile)]
    return [ShardFile(**{name: getattr(file, name) for name in names}) for file in messages]


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


def encode_save(record: SaveRecord | None) -> coordination_pb2.LastSave | None:
    if record is None:
        return None
    return coordination_pb2.LastSave(
        ended_at_s=record.ended_at_s,
        seconds=record.seconds,
        step=record.step,
        path=record.path,
        error=record.error,
    )


def encode_place(
    place: Place, standing: Standing, silent_s: float, buckets: Mapping[int, int]
) -> coordination_pb2.MemberStatus:
    """`buckets` counts the map's buckets by ps index."""
    message = coordination_pb2.MemberStatus(
        role=_ROLE_TAGS[place.role],
        index=place.index,
        address=place.address,
        metrics_address=place.metrics_address,
        is_connected=place.is_connected,
        silent_s=silent_s,
        standing=_STANDINGS[standing],
        pid=place.pid,
        host=place.host,
        buckets=buckets.get(place.index, 0) if place.role is Role.PS else 0,
    )
    if place.role is Role.WORKER:
        message.worker.CopyFrom(coordination_pb2.WorkerReport(**dataclasses.asdict(place.progress)))
    else:
        message.ps.CopyFrom(coordination_pb2.PsReport(**dataclasses.asdict(place.load)))
    return message


def encode_candidate(candidate: CandidateStatus) -> coordination_pb2.PsCandidate:
    return coordination_pb2.PsCandidate(
        index=candidate.index,
        address=candidate.address,
        is_connected=candidate.is_connected,
        shard=0 if candidate.shard is None else candidate.shard + 1,
        rows_per_s=candidate.rows_per_s,
    )
