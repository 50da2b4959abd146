"""Controller values to and from protobuf messages."""

import dataclasses
from collections.abc import Iterable

from megalith.controller.directives import ClusterState, Phase
from megalith.controller.roster import Place, PsLoad, Registration, Role, WorkerProgress
from megalith.protos import common_pb2, coordination_pb2
from megalith.runtime.manifest import ShardFile
from megalith.wire import codec
from megalith.wire.errors import InvalidRequest

_ROLES = {common_pb2.ROLE_PS: Role.PS, common_pb2.ROLE_WORKER: Role.WORKER}
_ROLE_TAGS = {role: tag for tag, role in _ROLES.items()}
_PHASES = {
    Phase.FORMING: coordination_pb2.PHASE_FORMING,
    Phase.INITIALIZING: coordination_pb2.PHASE_INITIALIZING,
    Phase.RUNNING: coordination_pb2.PHASE_RUNNING,
    Phase.FINISHED: coordination_pb2.PHASE_FINISHED,
}


def decode_registration(message: coordination_pb2.Register) -> Registration:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"register: unknown role {message.role}")
    if not message.address or not message.incarnation:
        raise InvalidRequest("register: address and incarnation must be given")
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
    )


def decode_worker_report(message: coordination_pb2.WorkerReport) -> WorkerProgress:
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
    )


def decode_ps_report(message: coordination_pb2.PsReport) -> PsLoad:
    return PsLoad(message.is_ready, message.rows, message.bytes, message.pulls, message.pushes)


def decode_files(messages: Iterable[coordination_pb2.ShardFile]) -> list[ShardFile]:
    return [ShardFile(file.name, file.kind, file.table, file.rows, file.bytes, file.sha256) for file in messages]


def encode_phase(phase: Phase) -> "coordination_pb2.Phase.ValueType":
    return _PHASES[phase]


def encode_state(state: ClusterState) -> coordination_pb2.ClusterState:
    message = coordination_pb2.ClusterState(
        phase=encode_phase(state.phase),
        barrier=coordination_pb2.Barrier(is_placed=state.is_barrier_placed, action=state.barrier_action),
        finished_workers=state.finished_workers,
    )
    if state.routing is not None:
        message.routing.CopyFrom(codec.routing_to_proto(state.routing))
    return message


def encode_place(place: Place, now: float) -> coordination_pb2.MemberStatus:
    message = coordination_pb2.MemberStatus(
        role=_ROLE_TAGS[place.role],
        index=place.index,
        address=place.address,
        metrics_address=place.metrics_address,
        is_connected=place.is_connected,
        silent_s=now - place.last_seen if place.address else 0.0,
    )
    if place.role is Role.WORKER:
        message.worker.CopyFrom(coordination_pb2.WorkerReport(**dataclasses.asdict(place.progress)))
    else:
        message.ps.CopyFrom(coordination_pb2.PsReport(**dataclasses.asdict(place.load)))
    return message
