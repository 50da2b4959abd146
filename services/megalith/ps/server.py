"""Composition root of a parameter server."""

import logging
import secrets
import time
from dataclasses import replace
from functools import partial

from megalith.protos import benchmark_pb2_grpc, parameter_server_pb2_grpc
from megalith.protos import parameter_server_pb2 as pb
from megalith.ps.benchmark import BenchmarkServicer, ScratchTable
from megalith.ps.compiling import log_compilations
from megalith.ps.config import PsConfig
from megalith.ps.data_plane import DataPlane
from megalith.ps.expiry_thread import ExpiryThread
from megalith.ps.lane.calls import LaneCalls
from megalith.ps.lane.server import LaneServer
from megalith.ps.member import PsMember
from megalith.ps.metrics import store_metrics
from megalith.ps.recent_calls import RecentCalls
from megalith.ps.servicer import ParameterServicer
from megalith.ps.store.replay import AppliedPushes
from megalith.ps.store.store import Store
from megalith.ps.store.writes import WriteReply
from megalith.runtime import lifecycle
from megalith.runtime.lease import Lease
from megalith.runtime.lifecycle import ExitRequest
from megalith.runtime.monolith_metrics import MonolithMetrics
from megalith.runtime.presence import assigned
from megalith.runtime.server import RpcServer
from megalith.wire.budget import ByteBudget

logger = logging.getLogger(__name__)


class PsServer:
    """One parameter server.

    SERVING once it is registered, restored and its kernels are compiled.
    """

    def __init__(self, config: PsConfig, exit_request: ExitRequest) -> None:
        self._config = config
        applied = AppliedPushes[WriteReply](config.push_memory_bytes, config.push_memory_s)
        lease = Lease()
        self._store = Store(config.index, clock=time.time, applied=applied, lease=lease)
        metrics = store_metrics(self._store)
        limit = config.server.max_message_bytes
        tags = {"model_name": config.membership.model_name, "ps": str(config.index)}
        lookups = MonolithMetrics(metrics).timer(
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
            config.lane,
            self._negotiate,
        )

        scratch = ScratchTable()
        benchmark = BenchmarkServicer(scratch)
        self._rpc = RpcServer(
            config.server,
            metrics,
            {
                "megalith.v1.ParameterServer": partial(
                    parameter_server_pb2_grpc.add_ParameterServerServicer_to_server, servicer
                ),
                "megalith.v1.Benchmark": partial(
                    benchmark_pb2_grpc.add_BenchmarkServicer_to_server, benchmark
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


def _as_assigned(config: PsConfig) -> PsConfig:
    index, server = assigned("ps", config.index, config.server, config.discovery)
    return replace(config, index=index, server=server)


def run(config: PsConfig) -> int:
    """Serve until told to stop; returns the exit status."""
    log_compilations()
    return lifecycle.run(
        f"ps-{config.index}",
        lambda exit_request: PsServer(_as_assigned(config), exit_request),
        log_level=config.server.log_level,
        exit_with_stdin=config.server.exit_with_stdin,
    )
