"""gRPC faces of the controller: the five public calls, and coordination of members."""

import contextlib
import functools
import logging
from collections.abc import Iterator

import grpc

from megalith.controller.codec import (
    decode_holder,
    decode_piece_request,
    decode_ps_report,
    decode_reason,
    decode_registration,
    decode_shard_saved,
    decode_worker_report,
    encode_save_order,
    encode_state,
)
from megalith.controller.coordinator import Coordinator
from megalith.controller.job_end import JobEnding
from megalith.controller.members.directives import (
    ClusterState,
    MeasureOrder,
    Renewed,
    ReportOrder,
    SaveShard,
    SessionEnd,
    ShutdownOrder,
    StandBy,
    Told,
    Welcome,
)
from megalith.controller.members.roster import Registration
from megalith.controller.members.session import (
    Measured,
    Renewal,
    Reported,
    Said,
    SessionHost,
)
from megalith.controller.replicas import Replicas
from megalith.controller.saving.saves import Saver
from megalith.controller.status import About, StatusBoard
from megalith.errors import InvalidRequest
from megalith.protos import (
    controller_pb2,
    controller_pb2_grpc,
    coordination_pb2,
    coordination_pb2_grpc,
)
from megalith.protos.coordination_pb2 import SessionRequest, SessionResponse
from megalith.wire import codec, piece_codec, routing

logger = logging.getLogger(__name__)


class ControllerServicer(controller_pb2_grpc.ControllerServicer):
    """The five calls of Monolith's controller."""

    def __init__(self, coordinator: Coordinator, saver: Saver) -> None:
        self._coordinator = coordinator
        self._saver = saver

    def StopTraining(
        self, request: controller_pb2.StopTrainingRequest, context: grpc.ServicerContext
    ) -> controller_pb2.StopTrainingResponse:
        self._coordinator.place_barrier()
        return controller_pb2.StopTrainingResponse()

    def ResumeTraining(
        self, request: controller_pb2.ResumeTrainingRequest, context: grpc.ServicerContext
    ) -> controller_pb2.ResumeTrainingResponse:
        self._coordinator.remove_barrier()
        return controller_pb2.ResumeTrainingResponse()

    def GetBlockStatus(
        self, request: controller_pb2.GetBlockStatusRequest, context: grpc.ServicerContext
    ) -> controller_pb2.GetBlockStatusResponse:
        blocked, unblocked = self._coordinator.block_status()
        return controller_pb2.GetBlockStatusResponse(
            blocked_indices=blocked, unblocked_indices=unblocked
        )

    def SaveCheckpoint(
        self, request: controller_pb2.SaveCheckpointRequest, context: grpc.ServicerContext
    ) -> controller_pb2.SaveCheckpointResponse:
        self._saver.save()
        return controller_pb2.SaveCheckpointResponse()

    def GetTrainingStatus(
        self, request: controller_pb2.GetTrainingStatusRequest, context: grpc.ServicerContext
    ) -> controller_pb2.GetTrainingStatusResponse:
        return controller_pb2.GetTrainingStatusResponse(global_step=self._coordinator.global_step)


class CoordinationServicer(coordination_pb2_grpc.CoordinationServicer):
    """Sessions of members, and the calls of operators and SDK clients."""

    def __init__(
        self,
        coordinator: Coordinator,
        host: SessionHost,
        saver: Saver,
        ending: JobEnding,
        board: StatusBoard,
        about: About,
        replicas: Replicas,
    ) -> None:
        self._coordinator = coordinator
        self._host = host
        self._saver = saver
        self._ending = ending
        self._board = board
        self._about = about
        self._replicas = replicas

    def Session(
        self,
        request_iterator: Iterator[coordination_pb2.SessionRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[coordination_pb2.SessionResponse]:
        registration = read_registration(request_iterator)
        if registration is None:
            return

        said = read_said(request_iterator)
        # Closed with this generator: the member has left then, whatever it was being told
        with contextlib.closing(self._host.hold(registration, said, context)) as told:
            for one in told:
                yield encode_told(one, self._about)

    def GetRouting(
        self, request: coordination_pb2.GetRoutingRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.GetRoutingResponse:
        current = self._coordinator.current_routing(request.run_id)
        return coordination_pb2.GetRoutingResponse(routing=codec.routing_to_proto(current))

    def GetStatus(
        self, request: coordination_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.GetStatusResponse:
        return self._board.reply()

    def PlaceBarrier(
        self, request: coordination_pb2.PlaceBarrierRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.PlaceBarrierResponse:
        placed = self._coordinator.place_barrier(
            request.action, request.reason, decode_holder(request.holder)
        )
        return coordination_pb2.PlaceBarrierResponse(id=placed.id)

    def RemoveBarrier(
        self, request: coordination_pb2.RemoveBarrierRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.RemoveBarrierResponse:
        self._coordinator.remove_barrier(decode_holder(request.holder))
        return coordination_pb2.RemoveBarrierResponse()

    def Save(
        self, request: coordination_pb2.SaveRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.SaveResponse:
        saved = self._saver.save(
            request.directory, hold=request.hold_training, is_last=request.is_last
        )
        return coordination_pb2.SaveResponse(
            path=str(saved.path),
            step=saved.step,
            rows=saved.rows,
            moving_workers=saved.moving_workers,
            bytes=saved.bytes,
            seconds=saved.seconds,
            removed=saved.removed,
            removed_stopgap=saved.removed_stopgap,
        )

    def ReportReplica(
        self, request: coordination_pb2.ReportReplicaRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.ReportReplicaResponse:
        self._replicas.report(request.job, codec.replica_report_from_proto(request.report))
        return coordination_pb2.ReportReplicaResponse()

    def TakePieces(
        self, request: coordination_pb2.TakePiecesRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.TakePiecesResponse:
        answer = self._coordinator.take_pieces(decode_piece_request(request))
        return piece_codec.answer_to_proto(answer)

    def EndJob(
        self, request: coordination_pb2.EndJobRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.EndJobResponse:
        self._coordinator.check_current()
        reason = decode_reason(request.reason)
        self._ending.ask(request.succeeded, reason, request.at_once)
        return coordination_pb2.EndJobResponse()


def read_registration(requests: Iterator[SessionRequest]) -> Registration | None:
    """The first message of a stream.

    None if it was gone before it said anything, or silent for too long.
    """
    try:
        first = next(requests, SessionRequest())
    except grpc.RpcError:
        return None

    if first.WhichOneof("kind") != "register":
        raise InvalidRequest("a session begins with register")

    return decode_registration(first.register)


def read_said(requests: Iterator[SessionRequest]) -> Iterator[Said]:
    """The messages after it, until the stream ends or breaks."""
    try:
        for request in requests:
            said = _decode(request)
            if said is not None:
                yield said
    except grpc.RpcError:
        return  # whoever holds the session hears of its end from the stream itself


@functools.cache
def _say_unknown(kind: str) -> None:
    """Once for each kind, though members say it again and again."""
    logger.warning(
        "a member says what this controller does not know (%s), it is ignored; "
        "is the member of a newer version?",
        kind,
    )


def _decode(request: SessionRequest) -> Said | None:
    """None for a message that this version does not know."""
    match request.WhichOneof("kind"):
        case "worker":
            return decode_worker_report(request.worker)
        case "ps":
            return decode_ps_report(request.ps)
        case "shard_saved":
            return decode_shard_saved(request.shard_saved)
        case "renewal":
            return Renewal(request.renewal.sent_ns, request.renewal.is_last)
        case "measured":
            return Measured(request.measured.order, request.measured.rows_per_s)
        case "reported":
            return Reported(request.reported.order)

    _say_unknown(request.WhichOneof("kind") or "nothing that it can read")
    return None


def encode_told(told: Told, about: About) -> SessionResponse:
    match told:
        case Welcome():
            return SessionResponse(welcome=_encode_welcome(told, about))
        case StandBy():
            return SessionResponse(standby=coordination_pb2.Standby())
        case ClusterState():
            return SessionResponse(state=encode_state(told))
        case SaveShard():
            return SessionResponse(save_shard=encode_save_order(told))
        case MeasureOrder(number, addresses, seconds):
            measure = coordination_pb2.Measure(order=number, addresses=addresses, seconds=seconds)
            return SessionResponse(measure=measure)
        case ReportOrder(number):
            return SessionResponse(ask_report=coordination_pb2.AskReport(order=number))
        case Renewed(sent_ns):
            return SessionResponse(renewed=coordination_pb2.Renewed(sent_ns=sent_ns))
        case ShutdownOrder(reason):
            return SessionResponse(shutdown=coordination_pb2.Shutdown(reason=reason))
        case SessionEnd():
            raise AssertionError("the end of a session is not sent")


def _encode_welcome(welcome: Welcome, about: About) -> coordination_pb2.Welcome:
    owners = routing.even_owners(about.num_ps)
    probe = about.storage_probe
    return coordination_pb2.Welcome(
        num_ps=about.num_ps,
        num_workers=about.num_workers,
        model_dir=about.model_dir,
        restore_from=welcome.restore_from,
        restore_increments=welcome.restore_increments,
        owners=routing.encode_owners(owners),
        job=about.job,
        shard=welcome.index,
        generation=about.generation,
        storage_probe=coordination_pb2.StorageProbe(path=probe.path, text=probe.text),
        checkpoint_dir=about.checkpoint_dir,
        choices=coordination_pb2.RestoreChoices(
            left_out_tables=welcome.choices.left_out_tables,
            clears_variables=welcome.choices.clears_variables,
            keeps_step=welcome.choices.keeps_step,
            old_names=welcome.choices.old_names,
            dense_from=welcome.choices.dense_from,
        ),
    )
