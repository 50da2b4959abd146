"""gRPC face of supervision: the mock beyond what the platform's AppMaster has."""

from dataclasses import asdict

import grpc

from megalith.appmaster.job import Job
from megalith.appmaster.savepoints import Savepoints
from megalith.appmaster.servicer import progress_of
from megalith.appmaster.supervision import ProcessState, Supervision
from megalith.appmaster.watch import JobWatch
from megalith.protos import supervision_pb2 as pb
from megalith.protos import supervision_pb2_grpc


class SupervisionServicer(supervision_pb2_grpc.SupervisionServicer):
    """Answers whoever starts the job's processes, and `megalith ctl app`."""

    def __init__(
        self, job: Job, savepoints: Savepoints, supervision: Supervision, watch: JobWatch
    ) -> None:
        self._job, self._savepoints, self._supervision, self._watch = (
            job,
            savepoints,
            supervision,
            watch,
        )

    def Supervise(
        self, request: pb.SuperviseRequest, context: grpc.ServicerContext
    ) -> pb.SuperviseResponse:
        ending = self._job.ending
        start = self._supervision.hear(
            [_decode(process) for process in request.processes], is_over=ending is not None
        )
        if ending is None:
            return pb.SuperviseResponse(start=start)
        return pb.SuperviseResponse(
            is_over=True, succeeded=ending.succeeded, reason=ending.reason, grace_s=ending.grace_s
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
        ending, seen = self._job.ending, self._watch.seen
        return pb.GetApplicationResponse(
            app_id=self._job.app_id,
            final_status=self._job.final_status.value,
            exit_code=ending.exit_code if ending else 0,
            reason=ending.reason if ending else "",
            max_restarts=self._supervision.max_restarts,
            is_supervised=self._supervision.is_supervised,
            processes=[
                pb.ProcessState(**asdict(process)) for process in self._supervision.processes()
            ],
            savepoints=[
                pb.SavepointStatus(
                    id=each.id, state=each.state.value, path=each.path, message=each.message
                )
                for each in self._savepoints.all()
            ],
            controller=seen.address if seen else "",
            phase=seen.phase if seen else "unknown",
            progress=progress_of(seen) if seen else 0.0,
            global_step=seen.global_step if seen else 0,
        )


def _decode(message: pb.ProcessState) -> ProcessState:
    return ProcessState(
        message.name, message.pid, message.starts, message.is_running, message.exit_status
    )
