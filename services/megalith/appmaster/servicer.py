"""gRPC face of the AppMaster towards the platform: all of primus.AppMasterService.

What the supervisor of a job asks for on top of that is in supervision_servicer.py.
"""

import datetime

import grpc

from megalith.appmaster.heartbeats import Heartbeats
from megalith.appmaster.job import HOLDER, FinalOutcome, FinalStatus, Job
from megalith.appmaster.savepoints import Savepoints, SavepointState
from megalith.control import ClusterStatus, Controller
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
        self._job = job
        self._savepoints = savepoints
        self._heartbeats = heartbeats
        self._controller = controller

    def ponyHeartbeat(
        self, request: pb.PonyHeartbeatRequest, context: grpc.ServicerContext
    ) -> pb.PonyHeartbeatResponse:
        self._heartbeats.heard()
        if self._job.final_status is not FinalStatus.UNDEFINED:
            return pb.PonyHeartbeatResponse(state=pb.FINISH)

        phase = self._controller.status().phase
        state = _PHASES.get(phase, pb.PS_REGISTERING)
        return pb.PonyHeartbeatResponse(state=state)

    def ponyGetPSInfo(
        self, request: pb.PonyGetPSInfoRequest, context: grpc.ServicerContext
    ) -> pb.PonyGetPSInfoResponse:
        servers = []
        status = self._controller.status()

        for member in status.members:
            if member.role == "ps" and member.is_connected:
                server = _ps_info(member.index, member.address)
                servers.append(server)

        return pb.PonyGetPSInfoResponse(ps_info=servers)

    def ponyStartWorker(
        self, request: pb.PonyStartWorkerRequest, context: grpc.ServicerContext
    ) -> pb.PonyStartWorkerResponse:
        return pb.PonyStartWorkerResponse()

    def succeed(
        self, request: pb.SucceedRequest, context: grpc.ServicerContext
    ) -> pb.SucceedResponse:
        reason = request.diagnose or "the AppMaster was told that the job succeeded"
        grace_s = request.graceful_shutdown_timeout_ms.value / 1000
        self._job.end(FinalOutcome(True, reason, request.exit_code, grace_s))
        return pb.SucceedResponse()

    def kill(self, request: pb.KillRequest, context: grpc.ServicerContext) -> pb.KillResponse:
        reason = request.diagnose or f"killed with exit code {request.exit_code}"
        grace_s = request.graceful_shutdown_timeout_ms.value / 1000
        outcome = FinalOutcome(False, reason, request.exit_code, grace_s)

        self._job.end(outcome)
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
        holders = [holder.kind for holder in status.barrier.holders]
        if HOLDER not in holders:  # others may hold training too
            return pb.SuspendStatusResponse(succeed=False, message="training is not suspended")

        moving = []
        for member in status.members:
            if member.role == "worker" and member.is_connected and not member.is_blocked:
                moving.append(member.index)

        if moving:
            message = f"workers not blocked yet: {moving}"
            return pb.SuspendStatusResponse(succeed=False, message=message)

        message = "every connected worker is blocked"
        if status.journal_error:
            message = (
                f"{message}; if the controller dies now, the next one forgets the suspension: "
                f"{status.journal_error}"
            )

        return pb.SuspendStatusResponse(succeed=True, message=message)

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
        for each in members:
            if not each.is_connected and not each.is_finished:
                return pb.StarvingResponse(starving=True)

        return pb.StarvingResponse(starving=False)

    def status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        return pb.StatusResponse(
            app_id=self._job.app_id,
            final_status=self._job.final_status.value,
            track_url=self._controller.address,
        )

    def getTaskTimePoint(
        self, request: pb.TaskTimePointRequest, context: grpc.ServicerContext
    ) -> pb.TaskTimePointResponse:
        return pb.TaskTimePointResponse(time_point=time_point_of(self._controller.status()))

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
    return pb.PSInfo(
        ip=host.strip("[]"),
        ports=[int(port)],
        shard_id=index,
        name=f"ps-{index}",
    )


def progress_of(status: ClusterStatus) -> float:
    """The share of the work that is done, 0 to 1; 0 while its length is not known."""
    pieces = status.pieces
    if pieces is not None:
        has_end = pieces.total > 0 and not pieces.is_followed
        return pieces.done / pieces.total if has_end else 0.0

    done = 0
    total = 0

    for member in status.members:
        if member.role == "worker" and member.total_batches:
            done += member.position
            total += member.total_batches

    return done / total if total else 0.0


def time_point_of(status: ClusterStatus) -> str:
    """Up to when the data is trained: the time of the worker that is farthest behind.

    ISO 8601 in UTC, such as 2026-11-18T13:00:00Z; empty while no batch had a time. Workers that are
    finished hold nobody up: once all are, it is the newest of them.
    """
    reached = [member for member in status.members if member.req_time_s]
    if not reached:
        return ""

    newest = max(member.req_time_s for member in reached)
    under_way = [member.req_time_s for member in reached if not member.is_finished]
    time_s = min(under_way, default=newest)

    moment = datetime.datetime.fromtimestamp(time_s, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
