"""The AppMaster as an operator or a program sees it."""

from __future__ import annotations  # grpc's generic types are generic for type checkers only

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import grpc
from google.protobuf.wrappers_pb2 import Int64Value

from megalith.control import address_file, retry
from megalith.control.connection import Answer, Connection, Method, RequestMessage
from megalith.errors import DeadlinePassed, InvalidRequest, SavepointRefused
from megalith.protos import appmaster_pb2, appmaster_pb2_grpc, supervision_pb2, supervision_pb2_grpc

_ATTEMPT_S = 5.0
# To end a job the AppMaster asks the controller first, and gives one that hangs as long as a try.
_END_ATTEMPTS = 2
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
    """What a supervisor is to do: start these processes again.

    Once the job is over, it lets all of them end within `grace_s`.
    """

    start: tuple[str, ...]
    is_over: bool
    succeeded: bool
    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class SavepointStatus:
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
    savepoints: tuple[SavepointStatus, ...]
    metrics_address: str = ""  # of the AppMaster's /metrics page


class AppMaster:
    """Kill, finish, save and watch an application. Thread-safe.

    `status` is repeated while the AppMaster is away, until `timeout_s`. An AppMaster that is found
    by the job's model directory may come back at another address.
    """

    def __init__(self, address: str | None, model_dir: str | None, timeout_s: float) -> None:
        if (address is None) == (model_dir is None):
            raise InvalidRequest("give either the AppMaster's address or the job's model_dir")

        self._connection = Connection(address_file.APPMASTER, address, model_dir)
        self._timeout_s = timeout_s

    def close(self) -> None:
        self._connection.close()

    def status(self) -> Application:
        """The application, its processes and savepoints."""
        request = supervision_pb2.GetApplicationRequest()

        def attempt() -> supervision_pb2.GetApplicationResponse:
            return self._once(lambda at: _supervision(at).GetApplication, request)

        return _application(retry.until(self._timeout_s)(attempt))

    def kill(self, reason: str = "", *, exit_code: int = 1, grace_s: float = 20.0) -> None:
        """End the job as a failure; ApplicationEnded if it has succeeded."""
        request = appmaster_pb2.KillRequest(
            exit_code=exit_code,
            diagnose=reason,
            graceful_shutdown_timeout_ms=_milliseconds(grace_s),
        )

        self._once(lambda at: _primus(at).kill, request, _END_ATTEMPTS)

    def succeed(self, reason: str = "", *, grace_s: float = 20.0) -> None:
        """End the job as a success; ApplicationEnded if it has failed."""
        request = appmaster_pb2.SucceedRequest(
            diagnose=reason, graceful_shutdown_timeout_ms=_milliseconds(grace_s)
        )
        self._once(lambda at: _primus(at).succeed, request, _END_ATTEMPTS)

    def suspend(self) -> None:
        """Hold training; holding what is held changes nothing."""
        self._once(lambda at: _primus(at).suspend, appmaster_pb2.SuspendRequest())

    def resume(self) -> None:
        """Let held training go on."""
        self._once(lambda at: _primus(at).resume, appmaster_pb2.ResumeRequest())

    def create_savepoint(self, directory: str = "") -> str:
        """Begin a checkpoint and return its id; SavepointRefused while another one is under way."""
        request = appmaster_pb2.CreateSavepointRequest(savepoint_dir=directory)
        reply = self._once(lambda at: _primus(at).createSavepoint, request)
        if reply.code != 0:
            raise SavepointRefused(reply.message)

        return reply.savepoint_id

    def savepoint(self, savepoint_id: str) -> SavepointStatus:
        """How it is doing; NotFound for an id that was never given."""
        request = appmaster_pb2.CreateSavepointStatusRequest(savepoint_restore_id=savepoint_id)
        reply = self._once(lambda at: _primus(at).createSavepointStatus, request)
        states = appmaster_pb2.CreateSavepointStatusResponse.CreateSavepointState

        state = states.Name(reply.create_savepoint_state).lower()
        if state == "succeeded":  # its message is the path
            return SavepointStatus(savepoint_id, state, path=reply.message)

        return SavepointStatus(savepoint_id, state, message=reply.message)

    def wait_for_savepoint(self, savepoint_id: str, timeout_s: float) -> SavepointStatus:
        """The savepoint once it is complete or has failed.

        DeadlinePassed if that takes longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        savepoint = self.savepoint(savepoint_id)
        while savepoint.state in _UNFINISHED:
            if time.monotonic() > deadline:
                raise DeadlinePassed(
                    f"savepoint {savepoint_id} is {savepoint.state} after {timeout_s:.0f} s"
                )

            time.sleep(_POLL_S)
            savepoint = self.savepoint(savepoint_id)

        return savepoint

    def set_max_restarts(self, count: int) -> None:
        """How often each process that died is started again; 0 = never."""
        request = supervision_pb2.SetRestartPolicyRequest(max_restarts=count)
        self._once(lambda at: _supervision(at).SetRestartPolicy, request)

    def restart(self, name: str) -> None:
        """Have a process that is down started again.

        ProcessAlive if it runs, NotSupervised if nobody can start it.
        """
        request = supervision_pb2.RestartProcessRequest(name=name)
        self._once(lambda at: _supervision(at).RestartProcess, request)

    def supervise(self, processes: Sequence[SupervisedProcess]) -> Verdict:
        """Say how the caller's processes are, all of them; the answer says what to do."""
        states = [supervision_pb2.ProcessState(**asdict(process)) for process in processes]
        request = supervision_pb2.SuperviseRequest(processes=states)
        reply = self._once(lambda at: _supervision(at).Supervise, request)

        return Verdict(
            tuple(reply.start), reply.is_over, reply.succeeded, reply.reason, reply.grace_s
        )

    def _once(
        self, method: Method[RequestMessage, Answer], request: RequestMessage, attempts: int = 1
    ) -> Answer:
        """One try, which may take as long as that many of the usual ones."""
        attempt_s = min(_ATTEMPT_S, self._timeout_s)
        return self._connection.call(method, request, attempts * attempt_s)


def _application(reply: supervision_pb2.GetApplicationResponse) -> Application:
    processes = (
        SupervisedProcess(each.name, each.pid, each.starts, each.is_running, each.exit_status)
        for each in reply.processes
    )

    savepoints = (
        SavepointStatus(each.id, each.state, each.path, each.message) for each in reply.savepoints
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
        processes=tuple(processes),
        savepoints=tuple(savepoints),
        metrics_address=reply.metrics_address,
    )


def _primus(at: grpc.Channel) -> appmaster_pb2_grpc.AppMasterServiceStub:
    return appmaster_pb2_grpc.AppMasterServiceStub(at)


def _supervision(at: grpc.Channel) -> supervision_pb2_grpc.SupervisionStub:
    return supervision_pb2_grpc.SupervisionStub(at)


def _milliseconds(seconds: float) -> Int64Value:
    if not seconds >= 0:
        raise InvalidRequest(f"grace_s={seconds}: below 0")
    return Int64Value(value=round(seconds * 1000))
