"""Composition root of a parameter server."""

import logging
import secrets
import time
from dataclasses import replace
from functools import partial

from megalith.protos import benchmark_pb2_grpc, parameter_server_pb2_grpc
from megalith.protos import parameter_server_pb2 as pb
from megalith.ps import health
from megalith.ps.benchmark import ScratchTable
from megalith.ps.benchmark_servicer import BenchmarkServicer
from megalith.ps.config import PsConfig
from megalith.ps.data_plane import DataPlane
from megalith.ps.expiry_thread import ExpiryThread
from megalith.ps.lane import LaneServer
from megalith.ps.lane_calls import LaneCalls
from megalith.ps.member import PsMember
from megalith.ps.replay import AppliedPushes
from megalith.ps.servicer import ParameterServicer
from megalith.ps.store import Reply, Store
from megalith.runtime import lifecycle
from megalith.runtime.lease import Lease
from megalith.runtime.lifecycle import ExitRequest
from megalith.runtime.metrics import Metrics
from megalith.runtime.presence import assigned
from megalith.runtime.recent_calls import RecentCalls
from megalith.runtime.server import RpcServer
from megalith.runtime.training_metrics import TrainingMetrics
from megalith.wire.budget import ByteBudget

logger = logging.getLogger(__name__)


_COUNTS = {
    "created": "Rows ever made.",
    "refused": "Writes of new ids dropped because a memory budget was reached.",
    "barred": "Writes of new ids dropped by an admission filter.",
    "nonfinite": "Gradient rows left out because they, or the rows after them, would hold NaN or infinity.",
    "expired": "Rows dropped by age.",
    "touched_overflow": "Changed ids forgotten by full touched-key sets.",
}


class PsServer:
    """One parameter server. SERVING once it is registered, restored and its kernels are compiled."""

    def __init__(self, config: PsConfig, exit_request: ExitRequest) -> None:
        self._config = config
        applied = AppliedPushes[Reply](config.push_memory_bytes, config.push_memory_s)
        lease = Lease()
        self._store = Store(config.index, clock=time.time, applied=applied, lease=lease)
        metrics, limit = self._metrics(), config.server.max_message_bytes
        tags = {"model_name": config.membership.model_name, "ps": str(config.index)}
        lookups = TrainingMetrics(metrics).timer(
            "embedding_lookup", "Microseconds of each lookup of rows.", **tags
        )
        data = DataPlane(self._store, lookups.observe, limit)
        # Who may call Negotiate may use the lane: whatever guards unary calls guards it too.
        self._token = secrets.token_bytes(16)
        requests = ByteBudget(config.max_inflight_bytes)  # one for both lanes
        replies = ByteBudget(config.max_inflight_bytes)
        self._lane = LaneServer(
            config.server.bind_host,
            config.lane_port,
            LaneCalls(data, metrics, self._token, limit),
            limit,
            requests,
            replies,
            config.lane,
        )
        servicer = ParameterServicer(
            config.index,
            self._store,
            data,
            requests,
            replies,
            self._negotiate,
            config.lane.room_wait_s,
        )
        scratch = ScratchTable()
        benchmark = BenchmarkServicer(scratch)
        self._rpc = RpcServer(
            config.server,
            metrics,
            {
                "megalith.v1.ParameterServer": (
                    lambda server: parameter_server_pb2_grpc.add_ParameterServerServicer_to_server(
                        servicer, server
                    )
                ),
                "megalith.v1.Benchmark": (
                    lambda server: benchmark_pb2_grpc.add_BenchmarkServicer_to_server(
                        benchmark, server
                    )
                ),
            },
        )
        self._presence = config.membership.open_presence("ps", config.index, config.discovery)
        self._member = PsMember(
            config.index,
            config.num_ps,
            config.membership,
            self._presence,
            self._store,
            lease,
            scratch,
            addresses=lambda: (self._rpc.address, self._rpc.metrics_address),
            set_serving=self._rpc.set_serving,
            recent_calls=RecentCalls(metrics).figures,
            memory_limit_bytes=config.memory_limit_bytes,
            expire_on_save=config.expire_on_save,
            restore_over_budget=config.restore_over_budget,
            exit_request=exit_request,
        )

        self._expiry = ExpiryThread(self._store.expire, config.expire_every_s)

    @property
    def address(self) -> str:
        return self._rpc.address

    def start(self) -> None:
        if self._config.bulk_lane:
            self._lane.start()
        try:
            self._rpc.start()
        except BaseException:
            self._lane.stop(0)
            raise
        self._member.start()
        self._expiry.start()
        logger.info("ps listening address=%s metrics=%s", self.address, self._rpc.metrics_address)

    def stop(self, grace_s: float) -> None:
        self._lane.stop(grace_s)
        self._rpc.stop(grace_s)
        self._expiry.stop()
        self._member.stop()
        self._presence.stop()

    def _negotiate(self) -> pb.NegotiateResponse:
        limit = self._config.server.max_message_bytes
        return pb.NegotiateResponse(
            lane_port=self._lane.port, lane_token=self._token, max_message_bytes=limit
        )

    def _metrics(self) -> Metrics:
        metrics = Metrics()
        metrics.gauge("megalith_rows", "Embedding rows held.", lambda: self._store.rows)
        metrics.gauge(
            "megalith_resident_bytes", "Memory of the whole process.", health.resident_bytes
        )
        metrics.gauge(
            "megalith_bytes",
            "Memory of rows, index, variables and remembered pushes.",
            lambda: self._store.nbytes,
        )
        metrics.gauge(
            "megalith_push_memory_bytes",
            "Memory of which pushes were applied.",
            lambda: self._store.push_memory_bytes,
        )
        for name, help in _COUNTS.items():
            metrics.counter(f"megalith_rows_{name}_total", help, partial(self._store.count, name))
        metrics.counter(
            "megalith_variable_updates_nonfinite_total",
            "Gradients and summands left out because a variable or its state would have overflowed.",
            lambda: self._store.nonfinite_updates,
        )
        metrics.gauge(
            "megalith_routing_epoch", "Newest routing map seen.", lambda: self._store.epoch
        )
        return metrics


def _as_assigned(config: PsConfig) -> PsConfig:
    index, server = assigned("ps", config.index, config.server, config.discovery)
    return replace(config, index=index, server=server)


def run(config: PsConfig) -> int:
    """Serve until told to stop; returns the exit status."""
    return lifecycle.run(
        f"ps-{config.index}",
        lambda exit_request: PsServer(_as_assigned(config), exit_request),
        log_level=config.server.log_level,
        exit_with_stdin=config.server.exit_with_stdin,
    )
