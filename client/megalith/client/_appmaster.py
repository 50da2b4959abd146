"""The AppMaster mock as an operator or a program sees it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import grpc
from google.protobuf.wrappers_pb2 import Int64Value

from megalith.client import _retry
from megalith.protos import appmaster_pb2, appmaster_pb2_grpc, supervision_pb2, supervision_pb2_grpc
from megalith.wire import appmaster_address, channel, forking
from megalith.wire.errors import DeadlinePassed, InvalidRequest, PeerUnreachable, SavepointRefused
from megalith.wire.status import translated

R = TypeVar("R")

_ATTEMPT_S = 5.0
_POLL_S = 0.2
_UNFINISHED = ("pending", "running")


@dataclass(frozen=True, slots=True)
class SupervisedProcess:
    """A process of the job; `exit_status` counts once it does not run, negative for a signal."""

    name: str
    pid: int
    starts: int
    is_running: bool
    exit_status: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a supervisor is to do: start these again, or, once the job is over, let all end within `grace_s`."""

    start: tuple[str, ...]
    is_over: bool
    succeeded: bool
    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Savepoint:
    """`state` is pending, running, succeeded or failed; `message` says why it failed."""

    id: str
    state: str
    path: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Application:
    """Everything the AppMaster knows, at one moment."""

    app_id: str
    final_status: str
    exit_code: int
    reason: str
    phase: str
    progress: float
    global_step: int
    controller: str
    max_restarts: int
    is_supervised: bool
    processes: tuple[SupervisedProcess, ...]
    savepoints: tuple[Savepoint, ...]


class AppMaster:
    """Kill, finish, save and watch an application. Not for use from several threads at once.

    Calls that only ask are repeated while the AppMaster is away, until `timeout_s`; found by the job's model directory,
    it may come back at another address.
    """

    def __init__(self, address: str | None, model_dir: str | None, timeout_s: float) -> None:
        if (address is None) == (model_dir is None):
            raise InvalidRequest("give either the AppMaster's address or the job's model_dir")
        self._given_address, self._model_dir, self._timeout_s = address, model_dir, timeout_s
        self._channel: grpc.Channel | None = None
        self._address = ""
        forking.renew_in_child(self)

    def renew_after_fork(self) -> None:
        """A forked child opens a channel of its own."""
        self._channel = None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def status(self) -> Application:
        """The application, its processes and savepoints."""
        request = supervision_pb2.GetApplicationRequest()
        reply = _retry.until(self._timeout_s)(
            lambda: self._once(
                lambda at, left: _supervision(at).GetApplication(request, timeout=left)
            )
        )
        return Application(
            app_id=reply.app_id,
            final_status=reply.final_status,
            exit_code=reply.exit_code,
            reason=reply.reason,
            phase=reply.phase,
            progress=round(reply.progress, 4),
            global_step=reply.global_step,
            controller=reply.controller,
            max_restarts=reply.max_restarts,
            is_supervised=reply.is_supervised,
            processes=tuple(
                SupervisedProcess(
                    each.name, each.pid, each.starts, each.is_running, each.exit_status
                )
                for each in reply.processes
            ),
            savepoints=tuple(
                Savepoint(each.id, each.state, each.path, each.message) for each in reply.savepoints
            ),
        )

    def kill(self, reason: str = "", *, exit_code: int = 1, grace_s: float = 20.0) -> None:
        """End the job as a failure; ApplicationEnded if it has succeeded."""
        request = appmaster_pb2.KillRequest(
            exit_code=exit_code,
            diagnose=reason,
            graceful_shutdown_timeout_ms=_milliseconds(grace_s),
        )
        self._once(lambda at, left: _primus(at).kill(request, timeout=2 * left))

    def succeed(self, reason: str = "", *, grace_s: float = 20.0) -> None:
        """End the job as a success; ApplicationEnded if it has failed."""
        request = appmaster_pb2.SucceedRequest(
            diagnose=reason, graceful_shutdown_timeout_ms=_milliseconds(grace_s)
        )
        self._once(lambda at, left: _primus(at).succeed(request, timeout=2 * left))

    def suspend(self) -> None:
        """Hold training; holding what is held changes nothing."""
        self._once(
            lambda at, left: _primus(at).suspend(appmaster_pb2.SuspendRequest(), timeout=left)
        )

    def resume(self) -> None:
        """Let held training go on."""
        self._once(lambda at, left: _primus(at).resume(appmaster_pb2.ResumeRequest(), timeout=left))

    def create_savepoint(self, directory: str = "") -> str:
        """Begin a checkpoint and return its id; SavepointRefused while another one is under way."""
        request = appmaster_pb2.CreateSavepointRequest(savepoint_dir=directory)
        reply = self._once(lambda at, left: _primus(at).createSavepoint(request, timeout=left))
        if reply.code != 0:
            raise SavepointRefused(reply.message)
        return reply.savepoint_id

    def savepoint(self, savepoint_id: str) -> Savepoint:
        """How it is doing; NotFound for an id that was never given."""
        request = appmaster_pb2.CreateSavepointStatusRequest(savepoint_restore_id=savepoint_id)
        reply = self._once(
            lambda at, left: _primus(at).createSavepointStatus(request, timeout=left)
        )
        state = appmaster_pb2.CreateSavepointStatusResponse.CreateSavepointState.Name(
            reply.create_savepoint_state
        )
        is_done = state == "SUCCEEDED"
        return Savepoint(
            savepoint_id,
            state.lower(),
            reply.message if is_done else "",
            "" if is_done else reply.message,
        )

    def wait_for_savepoint(self, savepoint_id: str, timeout_s: float) -> Savepoint:
        """The savepoint once it is complete or has failed; DeadlinePassed if that takes longer than `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (savepoint := self.savepoint(savepoint_id)).state in _UNFINISHED:
            if time.monotonic() > deadline:
                raise DeadlinePassed(
                    f"savepoint {savepoint_id} is {savepoint.state} after {timeout_s:.0f} s"
                )
            time.sleep(_POLL_S)
        return savepoint

    def set_max_restarts(self, count: int) -> None:
        """How often each process that died is started again; 0 = never."""
        request = supervision_pb2.SetRestartPolicyRequest(max_restarts=count)
        self._once(lambda at, left: _supervision(at).SetRestartPolicy(request, timeout=left))

    def restart(self, name: str) -> None:
        """Have a process that is down started again; ProcessAlive if it runs, NotSupervised if nobody can start it."""
        request = supervision_pb2.RestartProcessRequest(name=name)
        self._once(lambda at, left: _supervision(at).RestartProcess(request, timeout=left))

    def supervise(self, processes: Sequence[SupervisedProcess]) -> Verdict:
        """Say how the caller's processes are, all of them; the answer says what to do."""
        request = supervision_pb2.SuperviseRequest(
            processes=[supervision_pb2.ProcessState(**asdict(process)) for process in processes]
        )
        reply = self._once(lambda at, left: _supervision(at).Supervise(request, timeout=left))
        return Verdict(
            tuple(reply.start), reply.is_over, reply.succeeded, reply.reason, reply.grace_s
        )

    # --- plumbing ---

    def _once(self, call: Callable[[grpc.Channel, float], R]) -> R:
        """One try; `call` gets the seconds it may take. An AppMaster that has moved is found again at the next."""
        at = self._open()
        try:
            with forking.calls, translated(f"appmaster {self._address}"):
                return call(at, min(_ATTEMPT_S, self._timeout_s))
        except PeerUnreachable:
            self.close()
            raise

    def _open(self) -> grpc.Channel:
        if self._channel is None:
            self._address = self._find()
            self._channel = channel.open_channel(self._address)
        return self._channel

    def _find(self) -> str:
        address = self._given_address or appmaster_address.read(str(self._model_dir))
        if address is None:
            raise PeerUnreachable(
                f"no {appmaster_address.FILE_NAME} in {self._model_dir}: no AppMaster serves this model directory; "
                "start the job, or name its model directory or its AppMaster's address"
            )
        return address


def _primus(at: grpc.Channel) -> appmaster_pb2_grpc.AppMasterServiceStub:
    return appmaster_pb2_grpc.AppMasterServiceStub(at)


def _supervision(at: grpc.Channel) -> supervision_pb2_grpc.SupervisionStub:
    return supervision_pb2_grpc.SupervisionStub(at)


def _milliseconds(seconds: float) -> Int64Value:
    if not seconds >= 0:
        raise InvalidRequest(f"grace_s={seconds}: below 0")
    return Int64Value(value=round(seconds * 1000))
