"""The controller as an operator or a program sees it."""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import logging
import time

import grpc

from megalith.control import address_file, retry
from megalith.control.connection import Answer, Connection, FindAddress, Method, RequestMessage
from megalith.control.status import ClusterStatus, SaveResult, cluster_status
from megalith.errors import InvalidRequest, MegalithError, NotReady, PeerUnreachable
from megalith.protos import (
    controller_pb2,
    controller_pb2_grpc,
    coordination_pb2,
    coordination_pb2_grpc,
)
from megalith.wire import codec, piece_codec
from megalith.wire.pieces import PieceAnswer, PieceRequest
from megalith.wire.reports import ReplicaReport
from megalith.wire.routing import Routing

logger = logging.getLogger(__name__)

_REACH_S = 1.5  # one try to reach a controller for the first time
_SILENT_S = 2.0  # who waits longer for it is told
_ATTEMPT_S = 5.0  # one try of a short call; a lost controller is looked for again after it
_LAST_ATTEMPT_S = 1.0  # the least time that one try gets


class Controller:
    """Stop, resume, save and watch a job. Thread-safe.

    Calls that only ask, and `resume`, are repeated while the controller is away, until `timeout_s`.
    A controller that is found by its model directory, or by a function that says where it is now,
    may come back at another address.
    """

    def __init__(
        self, address: str | FindAddress | None, model_dir: str | None, timeout_s: float
    ) -> None:
        if (address is None) == (model_dir is None):
            raise InvalidRequest("give either the controller's address or its model_dir")

        if isinstance(address, str):
            address_file.checked(address)
        elif address is not None and not callable(address):
            raise InvalidRequest(
                f"address={address!r} is neither host:port nor a function that finds it"
            )

        self._connection = Connection(address_file.CONTROLLER, address, model_dir)
        self._timeout_s = timeout_s

    @property
    def address(self) -> str:
        """host:port of the controller now."""
        return self._connection.address

    def close(self) -> None:
        """Disconnect. A call that is being repeated on another thread ends at its next try."""
        self._connection.close()

    def reach(self, timeout_s: float) -> None:
        """Wait until a controller answers, whatever it says.

        PeerUnreachable, with what to correct, if none does. A warning says after 2 s that somebody
        waits, and for whom.
        """
        name = self._connection.name
        began = time.monotonic()
        is_said = False

        def attempt() -> None:
            nonlocal is_said
            left_s = began + timeout_s - time.monotonic()
            try:
                self._once(
                    lambda at: _coordination(at).GetStatus,
                    coordination_pb2.GetStatusRequest(),
                    max(0.1, min(_REACH_S, left_s)),
                )
            except NotReady:
                return  # a controller said so
            except retry.PASSING as error:
                if not is_said and time.monotonic() - began > _SILENT_S:
                    is_said = True
                    logger.warning(
                        "waiting up to %.0f s for the controller of %s: %s", timeout_s, name, error
                    )

                raise

        try:
            retry.until(timeout_s)(attempt)
        except retry.PASSING as error:
            raise PeerUnreachable(
                f"no controller answers at {name} within {timeout_s:.0f} s ({error}); "
                "start the job, correct the address or model_dir, "
                "or raise connect_timeout_s if the job needs longer to start"
            ) from error
        except MegalithError as error:
            if type(error) is not MegalithError:
                raise

            raise InvalidRequest(
                f"what answers at {name} is not a Megalith controller: {error}"
            ) from error

    # --- the five public calls, and the end of the job ---

    def stop(self, action: str = "", reason: str = "", holder: str = "operator") -> None:
        """Hold training: every worker blocks at its next step boundary.

        BarrierAlreadyPlaced if this holder holds it already. Workers act on some actions: after
        "Stop" they end their shares once training is resumed. `holder` is "operator" or "platform".
        Each ends its own hold only, and training goes on once nobody holds it.

        Training is held also if the controller cannot write that down, for example because the disk
        is full. The next controller would then forget the hold: `status().journal_error` says so.
        """
        if not action and not reason and holder == "operator":
            # The public call, whose request has no field for any of the three.
            stop = controller_pb2.StopTrainingRequest()
            self._once(lambda at: _public(at).StopTraining, stop)
            return

        place = coordination_pb2.PlaceBarrierRequest(action=action, reason=reason, holder=holder)
        self._once(lambda at: _coordination(at).PlaceBarrier, place)

    def resume(self, holder: str = "operator") -> None:
        """End this holder's hold; an operator also ends that of the health check.

        Does nothing if the holder holds nothing. Training stays held while a save or another holder
        holds it: `status().barrier.holders` says who.
        """
        if holder == "operator":
            resume = controller_pb2.ResumeTrainingRequest()
            self._ask(lambda at: _public(at).ResumeTraining, resume)
            return

        remove = coordination_pb2.RemoveBarrierRequest(holder=holder)
        self._ask(lambda at: _coordination(at).RemoveBarrier, remove)

    def block_status(self) -> tuple[list[int], list[int]]:
        """(blocked, unblocked) worker indices."""
        request = controller_pb2.GetBlockStatusRequest()
        reply = self._ask(lambda at: _public(at).GetBlockStatus, request)
        blocked = list(reply.blocked_indices)
        unblocked = list(reply.unblocked_indices)

        return blocked, unblocked

    def training_status(self) -> int:
        """The global step."""
        request = controller_pb2.GetTrainingStatusRequest()
        reply = self._ask(lambda at: _public(at).GetTrainingStatus, request)
        return reply.global_step

    def save(
        self,
        directory: str = "",
        timeout_s: float = 3600.0,
        *,
        hold: bool = False,
        is_last: bool = False,
    ) -> SaveResult:
        """Save a checkpoint and wait until it is complete; allowed while stopped.

        `hold` stops training meanwhile. Workers that do not block in time are not waited for; the
        answer names them as its `moving_workers`. With `is_last` training stays held after a save
        that succeeds, for a caller that ends the job next.
        """
        request = coordination_pb2.SaveRequest(
            directory=directory, hold_training=hold, is_last=is_last
        )
        reply = self._once(lambda at: _coordination(at).Save, request, timeout_s)
        return SaveResult(
            reply.path,
            reply.step,
            reply.rows,
            tuple(reply.moving_workers),
            reply.bytes,
            round(reply.seconds, 3),
            tuple(reply.removed),
            reply.removed_stopgap,
        )

    def end_job(self, succeeded: bool, reason: str, *, at_once: bool = False) -> None:
        """End the job: the model is saved, then every process of the cluster exits.

        `at_once` leaves the save out. Returns before the end: `status().outcome` says when it is
        over, and `reason` where the model was saved.
        """
        request = coordination_pb2.EndJobRequest(
            succeeded=succeeded, reason=reason, at_once=at_once
        )
        self._once(lambda at: _coordination(at).EndJob, request)

    # --- what there is to know ---

    def status(self) -> ClusterStatus:
        """Members, phase, step, results."""
        request = coordination_pb2.GetStatusRequest()
        return cluster_status(self._ask(lambda at: _coordination(at).GetStatus, request))

    def routing(self, timeout_s: float | None = None, run_id: str = "") -> Routing:
        """The newest routing map; waits, up to the deadline, until there is one.

        WrongRun if the controller is in another run than `run_id`; empty = any will do.
        """
        request = coordination_pb2.GetRoutingRequest(run_id=run_id)
        reply = self._ask(lambda at: _coordination(at).GetRouting, request, timeout_s)
        return codec.routing_from_proto(reply.routing)

    def routing_now(self, timeout_s: float, run_id: str) -> Routing:
        """Like `routing`, asked once: whatever keeps the controller from answering is raised."""
        request = coordination_pb2.GetRoutingRequest(run_id=run_id)
        reply = self._once(lambda at: _coordination(at).GetRouting, request, timeout_s)
        return codec.routing_from_proto(reply.routing)

    def report_replica(self, report: ReplicaReport, job: str, timeout_s: float) -> None:
        """A serving replica says where and how it is; asked once."""
        request = coordination_pb2.ReportReplicaRequest(
            report=codec.replica_report_to_proto(report), job=job
        )
        self._once(lambda at: _coordination(at).ReportReplica, request, timeout_s)

    def take_pieces(self, request: PieceRequest, timeout_s: float) -> PieceAnswer:
        """A worker says how far it is with its pieces, and takes more of them; asked once."""
        message = piece_codec.request_to_proto(request)
        reply = self._once(lambda at: _coordination(at).TakePieces, message, timeout_s)
        return piece_codec.answer_from_proto(reply)

    # --- how calls are made ---

    def _ask(
        self,
        method: Method[RequestMessage, Answer],
        request: RequestMessage,
        timeout_s: float | None = None,
    ) -> Answer:
        """An idempotent call, repeated while it may succeed later."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s

        # The last try gets time for an answer too: cut short, it would say that the time is over
        # instead of what is wrong.
        least_s = min(_LAST_ATTEMPT_S, limit_s)

        def attempt() -> Answer:
            left_s = deadline - time.monotonic()
            return self._once(method, request, max(least_s, min(_ATTEMPT_S, left_s)))

        result: Answer = retry.until(limit_s)(attempt)
        return result

    def _once(
        self,
        method: Method[RequestMessage, Answer],
        request: RequestMessage,
        timeout_s: float | None = None,
    ) -> Answer:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return self._connection.call(method, request, limit_s)


def _public(at: grpc.Channel) -> controller_pb2_grpc.ControllerStub:
    return controller_pb2_grpc.ControllerStub(at)


def _coordination(at: grpc.Channel) -> coordination_pb2_grpc.CoordinationStub:
    return coordination_pb2_grpc.CoordinationStub(at)
