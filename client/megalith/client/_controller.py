"""The controller as an operator or a program sees it."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from megalith.client import _retry
from megalith.protos import (
    common_pb2,
    controller_pb2,
    controller_pb2_grpc,
    coordination_pb2,
    coordination_pb2_grpc,
)
from megalith.wire import channel, codec, controller_address, forking
from megalith.wire.errors import InvalidRequest, MegalithError, NotReady, PeerUnreachable
from megalith.wire.routing import Routing
from megalith.wire.status import translated

R = TypeVar("R")
FindController = Callable[
    [], str
]  # the controller's host:port now; PeerUnreachable while nobody knows it

logger = logging.getLogger(__name__)

_REACH_S = 1.5  # one try to reach a controller for the first time
_SILENT_S = 2.0  # who waits longer for it is told
_ATTEMPT_S = 5.0  # one try of a short call; a lost controller is looked for again after it
_ROLES = {common_pb2.ROLE_PS: "ps", common_pb2.ROLE_WORKER: "worker"}


@dataclass(frozen=True, slots=True)
class Member:
    """One place of the cluster. Fields of the other role stay 0."""

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
    examples: int = 0
    examples_per_s: float = 0.0
    loss: float = 0.0
    is_blocked: bool = False
    is_finished: bool = False
    failovers: int = 0
    pid: int = 0
    host: str = ""
    pushes_unknown: int = 0
    restored: "Restored | None" = None  # parameter servers: None until it is ready


@dataclass(frozen=True, slots=True)
class Holder:
    """One of those who hold training. `kind` is "operator", "save", "health" or "platform"."""

    kind: str
    reason: str
    action: str
    id: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Whether training is held. `action` and `reason` are those of whoever holds longest; `holders` lists everybody.

    `id` is the number of the newest hold, counted over the whole job.
    """

    id: int
    is_placed: bool
    action: str
    reason: str
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class LastSave:
    """How the last save of this controller went. `path` is empty when it failed, `error` when it did not."""

    ended_at_s: float
    seconds: float
    step: int
    path: str
    error: str


@dataclass(frozen=True, slots=True)
class PsCandidate:
    """A parameter server among more than the map needs."""

    index: int
    address: str
    is_connected: bool
    shard: int | None  # None = it stands by
    rows_per_s: float  # as the workers measured it; 0 = not measured


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that was trained and is lost. `at_s` is Unix time; `rows` is 0 where only updates or batches are."""

    at_s: float
    rows: int
    what: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What a parameter server took out of a checkpoint when it started; no `path` = it started empty."""

    path: str
    step: int
    rows: int
    expired: int
    left_out: int
    seconds: float


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
    members: tuple[Member, ...]
    job: str
    up_s: float
    barrier: Barrier
    last_save: LastSave | None
    next_save_s: float | None
    next_save_step: int | None
    candidates: tuple[PsCandidate, ...] = ()
    ending: str = ""  # why it ends, while it is saved for the last time
    unsaved: str = ""  # what no checkpoint holds, for people; empty = nothing
    rows_lost: int = 0
    pushes_unknown: int = 0
    run_id: str = ""
    losses: tuple[Loss, ...] = ()
    journal_error: str = (
        ""  # why a restart of the controller would forget holds on training; empty = it would not
    )


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    path: str
    step: int
    rows: int


class Controller:
    """Stop, resume, save and watch a job.

    Calls that only ask, and `resume`, are repeated while the controller is away, until `timeout_s`; found by its model
    directory, or by a function that says where it is now, it may come back at another address. `_lock` guards the
    channel.
    """

    def __init__(
        self, address: str | FindController | None, model_dir: str | None, timeout_s: float
    ) -> None:
        if (address is None) == (model_dir is None):
            raise InvalidRequest("give either the controller's address or its model_dir")
        if isinstance(address, str):
            controller_address.checked(address)
        elif address is not None and not callable(address):
            raise InvalidRequest(
                f"address={address!r} is neither host:port nor a function that finds it"
            )
        self._given_address, self._model_dir, self._timeout_s = address, model_dir, timeout_s
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._is_closed = False
        self._address = ""
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """A forked child opens a channel of its own."""
        self._lock = threading.Lock()
        self._channel = None

    @property
    def address(self) -> str:
        """host:port of the controller now."""
        return self._open()[1]

    def close(self) -> None:
        """Disconnect. A call that is being repeated on another thread ends at its next try."""
        with self._lock:
            self._is_closed = True
            if self._channel is not None:
                self._channel.close()
                self._channel = None

    def reach(self, timeout_s: float) -> None:
        """Wait until a controller answers, whatever it says; PeerUnreachable, and what to correct, if none does.

        A warning says after 2 s that somebody waits, and for whom.
        """
        where = self._given_address if isinstance(self._given_address, str) else self._model_dir
        name = (
            f"model directory {where}" if self._model_dir is not None else where or "its discovery"
        )
        began = time.monotonic()
        is_said = False
        request = coordination_pb2.GetStatusRequest()

        def attempt() -> None:
            nonlocal is_said
            left_s = max(0.1, min(_REACH_S, began + timeout_s - time.monotonic()))
            try:
                self._once(
                    lambda at: coordination_pb2_grpc.CoordinationStub(at).GetStatus(
                        request, timeout=left_s
                    )
                )
            except NotReady:
                return  # a controller said so
            except _retry.PASSING as error:
                if not is_said and time.monotonic() - began > _SILENT_S:
                    is_said = True
                    logger.warning(
                        "waiting up to %.0f s for the controller of %s: %s", timeout_s, name, error
                    )
                raise

        try:
            _retry.until(timeout_s)(attempt)
        except _retry.PASSING as error:
            raise PeerUnreachable(
                f"no controller answers at {name} within {timeout_s:.0f} s ({error}); start the job, correct the "
                "address or model_dir, or raise connect_timeout_s if the job needs longer to start"
            ) from error
        except MegalithError as error:
            if type(error) is not MegalithError:
                raise
            raise InvalidRequest(
                f"what answers at {name} is not a Megalith controller: {error}"
            ) from error

    # --- the five public calls, and the end of the job ---

    def stop(self, action: str = "", reason: str = "", holder: str = "operator") -> None:
        """Hold training: every worker blocks at its next step boundary. BarrierAlreadyPlaced if this holder holds it.

        Workers act on some actions: after "Stop" they end their shares once training is resumed. `holder` is "operator"
        or "platform". Each ends its own hold only, and training goes on once nobody holds it.
        """
        if not action and not reason and holder == "operator":
            request = controller_pb2.StopTrainingRequest()
            self._once(
                lambda at: controller_pb2_grpc.ControllerStub(at).StopTraining(
                    request, timeout=self._timeout_s
                )
            )
            return
        place = coordination_pb2.PlaceBarrierRequest(action=action, reason=reason, holder=holder)
        self._once(
            lambda at: coordination_pb2_grpc.CoordinationStub(at).PlaceBarrier(
                place, timeout=self._timeout_s
            )
        )

    def resume(self, holder: str = "operator") -> None:
        """End this holder's hold; an operator also ends that of the health check. Does nothing if it holds nothing.

        Training stays held while a save or another holder holds it: `status().barrier.holders` says who.
        """
        if holder == "operator":
            resume = controller_pb2.ResumeTrainingRequest()
            self._ask(
                lambda at, left: controller_pb2_grpc.ControllerStub(at).ResumeTraining(
                    resume, timeout=left
                )
            )
            return
        remove = coordination_pb2.RemoveBarrierRequest(holder=holder)
        self._ask(
            lambda at, left: coordination_pb2_grpc.CoordinationStub(at).RemoveBarrier(
                remove, timeout=left
            )
        )

    def block_status(self) -> tuple[list[int], list[int]]:
        """(blocked, unblocked) worker indices."""
        request = controller_pb2.GetBlockStatusRequest()
        reply = self._ask(
            lambda at, left: controller_pb2_grpc.ControllerStub(at).GetBlockStatus(
                request, timeout=left
            )
        )
        return list(reply.blocked_indices), list(reply.unblocked_indices)

    def training_status(self) -> int:
        """The global step."""
        request = controller_pb2.GetTrainingStatusRequest()
        reply = self._ask(
            lambda at, left: controller_pb2_grpc.ControllerStub(at).GetTrainingStatus(
                request, timeout=left
            )
        )
        return reply.global_step

    def save(
        self, directory: str = "", timeout_s: float = 3600.0, *, hold: bool = False
    ) -> SavedCheckpoint:
        """Save a checkpoint and wait until it is complete; allowed while stopped. `hold` stops training meanwhile."""
        request = coordination_pb2.SaveRequest(directory=directory, hold_training=hold)
        reply = self._once(
            lambda at: coordination_pb2_grpc.CoordinationStub(at).Save(request, timeout=timeout_s)
        )
        return SavedCheckpoint(reply.path, reply.step, reply.rows)

    def end_job(self, succeeded: bool, reason: str, *, at_once: bool = False) -> None:
        """End the job: the model is saved, then every process of the cluster exits. `at_once` leaves the save out.

        Returns before that; `status().outcome` says when it is over, and `reason` where the model was saved.
        """
        request = coordination_pb2.EndJobRequest(
            succeeded=succeeded, reason=reason, at_once=at_once
        )
        self._once(
            lambda at: coordination_pb2_grpc.CoordinationStub(at).EndJob(
                request, timeout=self._timeout_s
            )
        )

    # --- what there is to know ---

    def status(self) -> ClusterStatus:
        """Members, phase, step, results."""
        request = coordination_pb2.GetStatusRequest()
        reply = self._ask(
            lambda at, left: coordination_pb2_grpc.CoordinationStub(at).GetStatus(
                request, timeout=left
            )
        )
        return ClusterStatus(
            address=reply.address,
            model_dir=reply.model_dir,
            phase=coordination_pb2.Phase.Name(reply.phase).removeprefix("PHASE_").lower(),
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
            losses=tuple(Loss(loss.at_s, loss.rows, loss.what) for loss in reply.losses),
            journal_error=reply.journal_error,
        )

    def routing(self, timeout_s: float | None = None, run_id: str = "") -> Routing:
        """The newest routing map; waits, up to the deadline, until there is one.

        WrongRun if the controller is in another run than `run_id`; empty = any will do.
        """
        request = coordination_pb2.GetRoutingRequest(run_id=run_id)
        reply = self._ask(
            lambda at, left: coordination_pb2_grpc.CoordinationStub(at).GetRouting(
                request, timeout=left
            ),
            timeout_s,
        )
        return codec.routing_from_proto(reply.routing)

    def routing_now(self, timeout_s: float, run_id: str) -> Routing:
        """Like `routing`, asked once: whatever keeps the controller from answering is raised."""
        request = coordination_pb2.GetRoutingRequest(run_id=run_id)
        reply = self._once(
            lambda at: coordination_pb2_grpc.CoordinationStub(at).GetRouting(
                request, timeout=timeout_s
            )
        )
        return codec.routing_from_proto(reply.routing)

    # --- plumbing ---

    def _ask(self, call: Callable[[grpc.Channel, float], R], timeout_s: float | None = None) -> R:
        """An idempotent call, repeated while it may succeed later; `call` gets the seconds left for one try."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s

        def attempt() -> R:
            left_s = max(0.0, min(_ATTEMPT_S, deadline - time.monotonic()))
            return self._once(lambda at: call(at, left_s))

        result: R = _retry.until(limit_s)(attempt)
        return result

    def _once(self, call: Callable[[grpc.Channel], R]) -> R:
        at, address = self._open()
        try:
            with forking.calls, translated(f"controller {address}"):
                return call(at)
        except PeerUnreachable:
            self._forget(at, address)
            raise

    def _forget(self, failed: grpc.Channel, address: str) -> None:
        """Let go of a channel whose controller has moved; one to the same address reconnects by itself."""
        if isinstance(self._given_address, str):
            return
        try:
            if self._find() == address:
                return
        except MegalithError:
            return  # nobody knows it now; the old address is as good as any
        with self._lock:
            if self._channel is failed:
                failed.close()
                self._channel = None

    def _open(self) -> tuple[grpc.Channel, str]:
        with self._lock:
            if self._is_closed:
                raise InvalidRequest("the connection to the controller is closed")
            if self._channel is None:
                self._address = self._find()
                self._channel = channel.open_channel(self._address)
            return self._channel, self._address

    def _find(self) -> str:
        if self._given_address is not None:
            return self._given_address() if callable(self._given_address) else self._given_address
        address = controller_address.read(str(self._model_dir))
        if address is None:
            raise PeerUnreachable(
                f"no {controller_address.FILE_NAME} in {self._model_dir}: no controller serves this model directory; "
                "start the job, or name its model directory or its controller's address"
            )
        return address


def _barrier(message: coordination_pb2.Barrier) -> Barrier:
    holders = tuple(
        Holder(holder.kind, holder.reason, holder.action, holder.id) for holder in message.holders
    )
    return Barrier(message.id, message.is_placed, message.action, message.reason, holders)


def _candidate(message: coordination_pb2.PsCandidate) -> PsCandidate:
    shard = message.shard - 1 if message.shard else None
    return PsCandidate(
        message.index, message.address, message.is_connected, shard, message.rows_per_s
    )


def _restored(message: coordination_pb2.Restored) -> Restored:
    return Restored(
        message.path,
        message.step,
        message.rows,
        message.expired,
        message.left_out,
        round(message.seconds, 3),
    )


def _last_save(message: coordination_pb2.LastSave) -> LastSave:
    return LastSave(
        message.ended_at_s, round(message.seconds, 3), message.step, message.path, message.error
    )


def _member(message: coordination_pb2.MemberStatus) -> Member:
    common: dict[str, Any] = {
        "role": _ROLES.get(message.role, "unknown"),
        "index": message.index,
        "address": message.address,
        "metrics_address": message.metrics_address,
        "is_connected": message.is_connected,
        "silent_s": round(message.silent_s, 3),
        "standing": coordination_pb2.Standing.Name(message.standing)
        .removeprefix("STANDING_")
        .lower(),
        "pid": message.pid,
        "host": message.host,
    }
    if message.role == common_pb2.ROLE_PS:
        ps = message.ps
        return Member(
            **common,
            rows=ps.rows,
            bytes=ps.bytes,
            is_ready=ps.is_ready,
            buckets=message.buckets,
            requests_per_s=ps.requests_per_s,
            p99_s=ps.p99_s,
            resident_bytes=ps.resident_bytes,
            memory_limit_bytes=ps.memory_limit_bytes,
            complaint=ps.complaint,
            restored=_restored(ps.restored) if ps.HasField("restored") else None,
        )
    worker = message.worker
    return Member(
        **common,
        global_step=worker.global_step,
        failovers=worker.failovers,
        pushes_unknown=worker.pushes_unknown,
        position=worker.position,
        total_batches=worker.total_batches,
        examples=worker.examples,
        examples_per_s=worker.examples_per_s,
        loss=worker.loss,
        is_blocked=worker.is_blocked,
        is_finished=worker.is_finished,
    )
