"""gRPC face of supervision: what `megalith up --restart` and `megalith ctl app` ask for.

The platform's own AppMaster has no such calls, because it starts the processes itself.
"""

from collections.abc import Callable
from dataclasses import asdict

import grpc

from megalith.appmaster.job import Job
from megalith.appmaster.savepoints import Savepoint, Savepoints
from megalith.appmaster.servicer import progress_of
from megalith.appmaster.supervision import ProcessState, Supervision
from megalith.appmaster.watch import JobWatch
from megalith.protos import supervision_pb2 as pb
from megalith.protos import supervision_pb2_grpc


class SupervisionServicer(supervision_pb2_grpc.SupervisionServicer):
    """Answers whoever starts the job's processes, and `megalith ctl app`."""

    def __init__(
        self,
        job: Job,
        savepoints: Savepoints,
        supervision: Supervision,
        watch: JobWatch,
        metrics_address: Callable[[], str],
    ) -> None:
        self._job = job
        self._savepoints = savepoints
        self._supervision = supervision
        self._watch = watch
        self._metrics_address = metrics_address

    def Supervise(
        self, request: pb.SuperviseRequest, context: grpc.ServicerContext
    ) -> pb.SuperviseResponse:
        ending = self._job.ending
        processes = [_decode(process) for process in request.processes]
        start = self._supervision.hear(processes, is_over=ending is not None)
        if ending is None:
            return pb.SuperviseResponse(start=start)

        return pb.SuperviseResponse(
            is_over=True,
            succeeded=ending.succeeded,
            reason=ending.reason,
            grace_s=ending.grace_s,
        )

    def SetRestartPolicy(
        self, request: pb.SetRestartPolicyRequest, context: grpc.ServicerContext
    ) -> pb.SetRestartPolicyResponse:
        self._supervision.max_restarts = request.max_restarts
        return pb.SetRestartPolicyResponse()

    def RestartProcess(
        self, request: pb.RestartProcessRequest, context: grpc.ServicerContext
    ) -> pb.RestartProcessResponse:
        self._supervision.restart(request.name)
        return pb.RestartProcessResponse()

    def GetApplication(
        self, request: pb.GetApplicationRequest, context: grpc.ServicerContext
    ) -> pb.GetApplicationResponse:
        answer = pb.GetApplicationResponse(
            app_id=self._job.app_id,
            final_status=self._job.final_status.value,
            max_restarts=self._supervision.max_restarts,
            is_supervised=self._supervision.is_supervised,
            processes=[_encode(process) for process in self._supervision.processes()],
            savepoints=[_encode_savepoint(savepoint) for savepoint in self._savepoints.all()],
            phase="unknown",
            metrics_address=self._metrics_address(),
        )

        ending = self._job.ending
        if ending is not None:
            answer.exit_code = ending.exit_code
            answer.reason = ending.reason

        seen = self._watch.seen
        if seen is not None:
            answer.controller = seen.address
            answer.phase = seen.phase
            answer.progress = progress_of(seen)
            answer.global_step = seen.global_step

        return answer


def _encode(process: ProcessState) -> pb.ProcessState:
    return pb.ProcessState(**asdict(process))


def _encode_savepoint(savepoint: Savepoint) -> pb.SavepointStatus:
    return pb.SavepointStatus(
        id=savepoint.id,
        state=savepoint.state.value,
        path=savepoint.path,
        message=savepoint.message,
    )


def _decode(message: pb.ProcessState) -> ProcessState:
    return ProcessState(
        message.name,
        message.pid,
        message.starts,
        message.is_running,
        message.exit_status,
    )
