"""gRPC face of the AppMaster mock: all of primus.AppMasterService."""

import grpc

from megalith.appmaster.heartbeats import Heartbeats
from megalith.appmaster.job import HOLDER, Ending, FinalStatus, Job
from megalith.appmaster.savepoints import Savepoints, SavepointState
from megalith.client import ClusterStatus, Controller
from megalith.protos import appmaster_pb2 as pb
from megalith.protos import appmaster_pb2_grpc

_PHASES = {
    "forming": pb.PS_REGISTERING,
    "initializing": pb.PS_REGISTERED,
    "running": pb.RUNNING,
    "finished": pb.FINISH,
}
_SAVEPOINT_STATES = {
    SavepointState.PENDING: pb.CreateSavepointStatusResponse.PENDING,
    SavepointState.RUNNING: pb.CreateSavepointStatusResponse.RUNNING,
    SavepointState.SUCCEEDED: pb.CreateSavepointStatusResponse.SUCCEEDED,
    SavepointState.FAILED: pb.CreateSavepointStatusResponse.FAILED,
}

REFUSED = 1  # CreateSavepointResponse.code: not taken; on the platform any code but 0 means that


class AppMasterServicer(appmaster_pb2_grpc.AppMasterServiceServicer):
    """Answers for one job."""

    def __init__(
        self, job: Job, savepoints: Savepoints, heartbeats: Heartbeats, controller: Controller
    ) -> None:
        self._job, self._savepoints, self._heartbeats = job, savepoints, heartbeats
        self._controller = controller

    def ponyHeartbeat(
        self, request: pb.PonyHeartbeatRequest, context: grpc.ServicerContext
    ) -> pb.PonyHeartbeatResponse:
        self._heartbeats.heard()
        if self._job.final_status is not FinalStatus.UNDEFINED:
            return pb.PonyHeartbeatResponse(state=pb.FINISH)
        return pb.PonyHeartbeatResponse(
            state=_PHASES.get(self._controller.status().phase, pb.PS_REGISTERING)
        )

    def ponyGetPSInfo(
        self, request: pb.PonyGetPSInfoRequest, context: grpc.ServicerContext
    ) -> pb.PonyGetPSInfoResponse:
        servers = [
            member
            for member in self._controller.status().members
            if member.role == "ps" and member.is_connected
        ]
        return pb.PonyGetPSInfoResponse(
            ps_info=[_ps_info(member.index, member.address) for member in servers]
        )

    def ponyStartWorker(
        self, request: pb.PonyStartWorkerRequest, context: grpc.ServicerContext
    ) -> pb.PonyStartWorkerResponse:
        return pb.PonyStartWorkerResponse()

    def succeed(
        self, request: pb.SucceedRequest, context: grpc.ServicerContext
    ) -> pb.SucceedResponse:
        reason = request.diagnose or "the AppMaster was told that the job succeeded"
        self._job.end(
            Ending(
                True, reason, request.exit_code, request.graceful_shutdown_timeout_ms.value / 1000
            )
        )
        return pb.SucceedResponse()

    def kill(self, request: pb.KillRequest, context: grpc.ServicerContext) -> pb.KillResponse:
        reason = request.diagnose or f"killed with exit code {request.exit_code}"
        self._job.end(
            Ending(
                False, reason, request.exit_code, request.graceful_shutdown_timeout_ms.value / 1000
            )
        )
        return pb.KillResponse()

    def suspend(
        self, request: pb.SuspendRequest, context: grpc.ServicerContext
    ) -> pb.SuspendResponse:
        self._job.suspend()
        return pb.SuspendResponse()

    def suspendStatus(
        self, request: pb.SuspendStatusRequest, context: grpc.ServicerContext
    ) -> pb.SuspendStatusResponse:
        status = self._controller.status()
        moving = [
            m.index
            for m in status.members
            if m.role == "worker" and m.is_connected and not m.is_blocked
        ]
        if not any(
            holder.kind == HOLDER for holder in status.barrier.holders
        ):  # others may hold training too
            return pb.SuspendStatusResponse(succeed=False, message="training is not suspended")
        message = (
            f"workers not blocked yet: {moving}" if moving else "every connected worker is blocked"
        )
        return pb.SuspendStatusResponse(succeed=not moving, message=message)

    def resume(self, request: pb.ResumeRequest, context: grpc.ServicerContext) -> pb.ResumeResponse:
        self._job.resume()
        return pb.ResumeResponse()

    def getSnapshot(
        self, request: pb.GetSnapshotRequest, context: grpc.ServicerContext
    ) -> pb.GetSnapshotResponse:
        directory = self._savepoints.finished_path(str(request.snapshot_id))
        return pb.GetSnapshotResponse(available=bool(directory), dir=directory)

    def progress(
        self, request: pb.ProgressRequest, context: grpc.ServicerContext
    ) -> pb.ProgressResponse:
        return pb.ProgressResponse(progress=progress_of(self._controller.status()))

    def isStarving(
        self, request: pb.StarvingRequest, context: grpc.ServicerContext
    ) -> pb.StarvingResponse:
        members = self._controller.status().members
        return pb.StarvingResponse(
            starving=any(not m.is_connected and not m.is_finished for m in members)
        )

    def status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        return pb.StatusResponse(
            app_id=self._job.app_id,
            final_status=self._job.final_status.value,
            track_url=self._controller.address,
        )

    def getTaskTimePoint(
        self, request: pb.TaskTimePointRequest, context: grpc.ServicerContext
    ) -> pb.TaskTimePointResponse:
        return pb.TaskTimePointResponse()

    def createSavepoint(
        self, request: pb.CreateSavepointRequest, context: grpc.ServicerContext
    ) -> pb.CreateSavepointResponse:
        savepoint = self._savepoints.create(request.savepoint_dir)
        code = 0 if savepoint.id else REFUSED
        return pb.CreateSavepointResponse(
            code=code, message=savepoint.message, savepoint_id=savepoint.id
        )

    def createSavepointStatus(
        self, request: pb.CreateSavepointStatusRequest, context: grpc.ServicerContext
    ) -> pb.CreateSavepointStatusResponse:
        savepoint = self._savepoints.get(request.savepoint_restore_id)
        return pb.CreateSavepointStatusResponse(
            code=0,
            message=savepoint.message or savepoint.path,
            create_savepoint_state=_SAVEPOINT_STATES[savepoint.state],
        )


def _ps_info(index: int, address: str) -> pb.PSInfo:
    host, _, port = address.rpartition(":")
    return pb.PSInfo(ip=host.strip("[]"), ports=[int(port)], shard_id=index, name=f"ps-{index}")


def progress_of(status: ClusterStatus) -> float:
    """The share of the work that is done, 0 to 1; 0 while its length is not known."""
    workers = [
        member for member in status.members if member.role == "worker" and member.total_batches
    ]
    total = sum(member.total_batches for member in workers)
    return sum(member.position for member in workers) / total if total else 0.0
