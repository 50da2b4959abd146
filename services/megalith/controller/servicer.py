"""gRPC faces of the controller: the five public calls, and coordination of members."""

import collections
import logging
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import grpc

from megalith.controller.codec import (
    decode_holder,
    decode_ps_report,
    decode_registration,
    decode_shard,
    decode_worker_report,
    encode_barrier,
    encode_candidate,
    encode_phase,
    encode_place,
    encode_save,
    encode_state,
)
from megalith.controller.coordinator import Coordinator
from megalith.controller.directives import (
    ClusterState,
    MeasureOrder,
    Renewed,
    SaveOrder,
    SessionEnd,
    ShutdownOrder,
)
from megalith.controller.ending import JobEnding
from megalith.controller.formation import Formation
from megalith.controller.journal import JournalKeeper
from megalith.controller.mailbox import LIMIT, Mailbox
from megalith.controller.roster import Registration, Role
from megalith.controller.saves import Saver
from megalith.controller.schedule import SaveSchedule
from megalith.controller.start_point import StartPoint
from megalith.controller.unsaved import Unsaved
from megalith.protos import (
    controller_pb2,
    controller_pb2_grpc,
    coordination_pb2,
    coordination_pb2_grpc,
)
from megalith.wire import codec, routing
from megalith.wire.errors import InvalidRequest, MegalithError, Overloaded

logger = logging.getLogger(__name__)


class ControllerServicer(controller_pb2_grpc.ControllerServicer):
    """The reference's five calls."""

    def __init__(self, coordinator: Coordinator, saver: Saver) -> None:
        self._coordinator, self._saver = coordinator, saver

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
        formation: Formation,
        saver: Saver,
        schedule: SaveSchedule,
        about: "About",
        ending: JobEnding,
        unsaved: Unsaved,
        start_point: StartPoint,
        journal: JournalKeeper,
    ) -> None:
        self._coordinator, self._saver, self._schedule, self._about = (
            coordinator,
            saver,
            schedule,
            about,
        )
        self._ending = ending
        self._unsaved = unsaved
        self._formation = formation
        self._start_point = start_point
        self._journal = journal
        # A stream holds a thread of the pool; beyond these, strangers would keep operators from being answered.
        self._free_sessions = threading.BoundedSemaphore(about.max_sessions)

    def Session(
        self,
        request_iterator: Iterator[coordination_pb2.SessionRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[coordination_pb2.SessionResponse]:
        try:
            first = next(request_iterator, coordination_pb2.SessionRequest())
        except grpc.RpcError:
            return  # gone before it said anything, or silent for too long
        if first.WhichOneof("kind") != "register":
            raise InvalidRequest("a session begins with register")
        registration = decode_registration(first.register)
        # Only now: a stream that never registers takes nobody's place.
        if not self._free_sessions.acquire(blocking=False):
            raise Overloaded(
                f"{self._about.max_sessions} sessions are open already; is a member starting in a loop?"
            )
        try:
            yield from self._hold_session(registration, request_iterator, context)
        finally:
            self._free_sessions.release()

    def _hold_session(
        self,
        registration: Registration,
        request_iterator: Iterator[coordination_pb2.SessionRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[coordination_pb2.SessionResponse]:
        if registration.role is Role.PS and self._formation.is_selective:
            yield from self._stand_by(registration, request_iterator, context)
        else:
            yield from self._take_place(registration, request_iterator, context)

    def _stand_by(
        self,
        registration: Registration,
        request_iterator: Iterator[coordination_pb2.SessionRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[coordination_pb2.SessionResponse]:
        """A ps among more than are needed: it waits until it is chosen."""
        self._coordinator.check(registration)  # before the offer, which may take a shard
        offer = self._formation.offer(registration)
        try:
            if not context.add_callback(lambda: self._formation.withdraw(offer)):
                return
            if offer.shard is None:
                yield coordination_pb2.SessionResponse(standby=coordination_pb2.Standby())
            shard = self._formation.wait(offer)
            if shard is not None:
                yield from self._take_place(
                    replace(registration, index=shard), request_iterator, context
                )
            elif offer.reason:
                yield _encode_directive(ShutdownOrder(offer.reason))
        finally:
            self._formation.withdraw(offer)

    def _take_place(
        self,
        registration: Registration,
        request_iterator: Iterator[coordination_pb2.SessionRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[coordination_pb2.SessionResponse]:
        def drop() -> None:
            logger.warning(
                "%s %d leaves %d directives unread: its session is dropped",
                registration.role,
                registration.index,
                LIMIT,
            )
            context.cancel()

        # One that is back has its rows, and needs no checkpoint.
        is_new_ps = registration.role is Role.PS and registration.held_shard is None
        restore_from = self._start_point.find() if is_new_ps else None
        mailbox = Mailbox(on_overflow=drop)
        session = self._coordinator.join(registration, mailbox.put)

        def ended() -> None:  # by grpc, also while the thread of this session is stuck in a send
            self._coordinator.leave(session)
            mailbox.close()

        if not context.add_callback(ended):
            ended()
        refusals: list[MegalithError] = []
        reader = threading.Thread(
            target=self._read,
            args=(session, request_iterator, mailbox, refusals),
            name="session-reader",
            daemon=True,
        )
        reader.start()
        try:
            yield coordination_pb2.SessionResponse(
                welcome=coordination_pb2.Welcome(
                    num_ps=self._about.num_ps,
                    num_workers=self._about.num_workers,
                    model_dir=self._about.model_dir,
                    restore_from=str(restore_from or ""),
                    owners=routing.encode_owners(routing.even_owners(self._about.num_ps)),
                    job=self._coordinator.job,
                    shard=registration.index,
                    generation=self._about.generation,
                )
            )
            while not isinstance(directive := mailbox.get(), SessionEnd):
                yield _encode_directive(directive)
            if refusals:
                raise refusals[0]
        finally:
            self._coordinator.leave(session)

    def _read(
        self,
        session: int,
        requests: Iterator[coordination_pb2.SessionRequest],
        mailbox: Mailbox,
        refusals: list[MegalithError],
    ) -> None:
        """What the member says, until its stream ends or breaks, or it says what cannot be: `refusals` gets why."""
        try:
            for request in requests:
                match request.WhichOneof("kind"):
                    case "worker":
                        self._coordinator.report_worker(
                            session, decode_worker_report(request.worker)
                        )
                    case "ps":
                        self._coordinator.report_ps(session, decode_ps_report(request.ps))
                    case "shard_saved":
                        saved = request.shard_saved
                        self._saver.answer(session, saved.save_id, decode_shard(saved))
                    case "renewal":
                        if self._coordinator.renew(session, request.renewal.is_last):
                            mailbox.put(Renewed(request.renewal.sent_ns))
                    case "measured":
                        self._formation.answer(
                            session, request.measured.order, request.measured.rows_per_s
                        )
        except grpc.RpcError:
            pass  # the stream broke; leave() says so
        except MegalithError as error:
            logger.warning("a session is ended, its member reports what cannot be: %s", error)
            refusals.append(error)
        finally:
            mailbox.close()

    def GetRouting(
        self, request: coordination_pb2.GetRoutingRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.GetRoutingResponse:
        current = self._coordinator.current_routing(request.run_id)
        return coordination_pb2.GetRoutingResponse(routing=codec.routing_to_proto(current))

    def GetStatus(
        self, request: coordination_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.GetStatusResponse:
        state, outcome = self._coordinator.state(), self._coordinator.outcome
        places = self._coordinator.places()
        buckets = collections.Counter(state.routing.owners.tolist() if state.routing else ())
        next_save_s = self._schedule.next_s(time.monotonic())
        rows_lost, losses = self._coordinator.losses()
        return coordination_pb2.GetStatusResponse(
            address=self._about.address,
            model_dir=self._about.model_dir,
            num_ps=self._about.num_ps,
            num_workers=self._about.num_workers,
            phase=encode_phase(state.phase),
            epoch=state.routing.epoch if state.routing else 0,
            barrier=encode_barrier(state.barrier),
            global_step=self._coordinator.global_step,
            last_checkpoint=str(self._start_point.newest or ""),
            members=[encode_place(*place, buckets) for place in places],
            results=next(
                (place.progress.results for place, _, _ in places if place.progress.results), {}
            ),
            outcome="" if outcome is None else "succeeded" if outcome[0] else "failed",
            reason="" if outcome is None else outcome[1],
            job=self._coordinator.job,
            up_s=time.monotonic() - self._about.started_at,
            last_save=encode_save(self._saver.last),
            next_save_s=-1.0 if math.isinf(next_save_s) else max(0.0, next_save_s),
            next_save_step=self._schedule.next_step,
            candidates=[encode_candidate(candidate) for candidate in self._formation.candidates()],
            ending=self._ending.said,
            unsaved=self._unsaved.text(),
            rows_lost=rows_lost,
            pushes_unknown=self._coordinator.pushes_unknown,
            run_id=self._coordinator.run_id,
            journal_error=self._journal.error,
            losses=[
                coordination_pb2.Loss(at_s=loss.at_s, rows=loss.rows, what=loss.what)
                for loss in losses
            ],
        )

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
        saved = self._saver.save(request.directory, hold=request.hold_training)
        return coordination_pb2.SaveResponse(path=str(saved.path), step=saved.step, rows=saved.rows)

    def EndJob(
        self, request: coordination_pb2.EndJobRequest, context: grpc.ServicerContext
    ) -> coordination_pb2.EndJobResponse:
        self._coordinator.check_current()
        self._ending.ask(request.succeeded, request.reason, request.at_once)
        return coordination_pb2.EndJobResponse()


class About:
    """Facts of this controller that replies carry."""

    def __init__(
        self,
        model_dir: str,
        num_ps: int,
        num_workers: int,
        num_spare_ps: int = 0,
        generation: int = 0,
    ) -> None:
        self.model_dir, self.num_ps, self.num_workers = model_dir, num_ps, num_workers
        self._num_spare_ps = num_spare_ps
        self.generation = generation
        self.address = ""
        self.started_at = time.monotonic()

    @property
    def max_sessions(self) -> int:
        """Every place, as many replacements that overlap with who they replace, and some strangers."""
        return 2 * (self.num_ps + self._num_spare_ps + self.num_workers) + 8


def _encode_directive(
    directive: ClusterState | SaveOrder | MeasureOrder | Renewed | ShutdownOrder,
) -> coordination_pb2.SessionResponse:
    match directive:
        case ClusterState():
            return coordination_pb2.SessionResponse(state=encode_state(directive))
        case SaveOrder(save_id, directory, step):
            order = coordination_pb2.SaveShard(save_id=save_id, directory=directory, step=step)
            return coordination_pb2.SessionResponse(save_shard=order)
        case MeasureOrder(number, addresses, seconds):
            measure = coordination_pb2.Measure(order=number, addresses=addresses, seconds=seconds)
            return coordination_pb2.SessionResponse(measure=measure)
        case Renewed(sent_ns):
            return coordination_pb2.SessionResponse(
                renewed=coordination_pb2.Renewed(sent_ns=sent_ns)
            )
        case ShutdownOrder(reason):
            return coordination_pb2.SessionResponse(
                shutdown=coordination_pb2.Shutdown(reason=reason)
            )
