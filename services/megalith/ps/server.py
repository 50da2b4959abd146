"""Composition root of a parameter server."""

import logging
import secrets
import time
from dataclasses import replace
from functools import partial

from megalith.protos import (
    benchmark_pb2_grpc,
    parameter_server_pb2_grpc,
    replication_pb2_grpc,
)
from megalith.protos import parameter_server_pb2 as pb
from megalith.ps.benchmark import BenchmarkServicer, ScratchTable
from megalith.ps.compiling import log_compilations
from megalith.ps.config import PsConfig
from megalith.ps.data_plane import DataPlane
from megalith.ps.expiry_thread import ExpiryThread
from megalith.ps.following.servicer import ReplicationServicer
from megalith.ps.lane_calls import PsLaneCalls
from megalith.ps.member import PsMember
from megalith.ps.metrics import store_metrics
from megalith.ps.recent_calls import RecentCalls
from megalith.ps.servicer import ParameterServicer
from megalith.ps.store.known_saves import KnownSaves
from megalith.ps.store.replay import AppliedPushes
from megalith.ps.store.store import Store
from megalith.ps.store.writes import WriteReply
from megalith.ps.syncing.metrics import SyncMetrics
from megalith.ps.syncing.parameter_sync import ParameterSync
from megalith.runtime.joining.lease import Lease
from megalith.runtime.joining.presence import assigned, only_waits_for
from megalith.runtime.lane.calls import LaneCalls
from megalith.runtime.lane.server import LaneServer
from megalith.runtime.lane.starting import start_both
from megalith.runtime.monitoring.monolith_metrics import MonolithMetrics
from megalith.runtime.process import lifecycle
from megalith.runtime.process.bystander import Bystander
from megalith.runtime.process.lifecycle import ExitRequest, Service
from megalith.runtime.rpc.server import RpcServer
from megalith.wire.budget import ByteBudget

logger = logging.getLogger(__name__)


class PsServer:
    """One parameter server.

    SERVING once it is registered, restored and its kernels are compiled.
    """

    def __init__(self, config: PsConfig, exit_request: ExitRequest) -> None:
        self._config = config
        self._lease = Lease()
        self._store = _store(config, self._lease)
        self._known_saves = KnownSaves(self._store, config.replica_memory_s)
        self._metrics = store_metrics(self._store)

        self._make_data_plane()
        self._make_replication()
        self._make_rpc()
        self._make_member(exit_request)

        self._sync = ParameterSync(
            config.sync,
            self._store,
            SyncMetrics(self._metrics),
            may_push=lambda: self._lease.is_held,
        )
        self._expiry = ExpiryThread(self._store.expire, config.expire_every_s)

    def _make_data_plane(self) -> None:
        """Pulls and pushes, by gRPC and by the lane."""
        config = self._config
        limit = config.server.max_message_bytes
        tags = {"model_name": config.membership.model_name, "ps": str(config.index)}
        lookups = MonolithMetrics(self._metrics).timer(
            "embedding_lookup", "Microseconds of each lookup of rows.", **tags
        )
        data = DataPlane(self._store, lookups.observe, limit)

        # Who may call Negotiate may use the lane: whatever guards unary calls guards it too.
        self._token = secrets.token_bytes(16)
        requests = ByteBudget(config.max_inflight_bytes)  # one for both lanes
        replies = ByteBudget(config.max_inflight_bytes)
        calls = PsLaneCalls(data)
        self._lane = LaneServer(
            config.server.bind_host,
            config.lane_port,
            LaneCalls(calls.call, self._metrics, self._token, limit),
            limit,
            requests,
            replies,
            config.lane,
        )
        self._servicer = ParameterServicer(
            config.index,
            self._store,
            data,
            requests,
            replies,
            config.lane,
            self._negotiate,
        )

    def _make_replication(self) -> None:
        config = self._config
        self._replication = ReplicationServicer(
            config.index,
            self._store,
            self._known_saves,
            config.delta_every_s,
            config.dense_every_s,
            config.replica_memory_s,
            config.max_replicas,
            config.server.max_message_bytes,
        )

    def _make_rpc(self) -> None:
        self._scratch = ScratchTable()
        benchmark = BenchmarkServicer(self._scratch)
        services = {
            "megalith.v1.ParameterServer": partial(
                parameter_server_pb2_grpc.add_ParameterServerServicer_to_server, self._servicer
            ),
            "megalith.v1.Benchmark": partial(
                benchmark_pb2_grpc.add_BenchmarkServicer_to_server, benchmark
            ),
            "megalith.v1.Replication": partial(
                replication_pb2_grpc.add_ReplicationServicer_to_server, self._replication
            ),
        }
        self._rpc = RpcServer(
            self._config.server,
            self._metrics,
            services,
            extra_threads=self._config.max_replicas,
        )

    def _make_member(self, exit_request: ExitRequest) -> None:
        config = self._config
        recent_calls = RecentCalls(self._metrics)
        self._presence = config.membership.open_presence("ps", config.index, config.discovery)
        self._member = PsMember(
            config.index,
            config.num_ps,
            config.membership,
            self._presence,
            self._store,
            self._known_saves,
            self._lease,
            self._scratch,
            addresses=lambda: (self._rpc.address, self._rpc.metrics_address),
            set_serving=self._rpc.set_serving,
            recent_calls=recent_calls.figures,
            memory_limit_bytes=config.memory_limit_bytes,
            expire_on_save=config.expire_on_save,
            restore_over_budget=config.restore_over_budget,
            stay_up=config.stay_up,
            exit_request=exit_request,
        )

    @property
    def address(self) -> str:
        return self._rpc.address

    def start(self) -> None:
        if self._config.bulk_lane:
            start_both(self._lane, self._rpc)
        else:
            self._rpc.start()

        self._member.start()
        self._replication.start()
        self._sync.start()
        self._expiry.start()
        logger.info("ps listening address=%s metrics=%s", self.address, self._rpc.metrics_address)

    def stop(self, grace_s: float) -> None:
        self._replication.stop()
        self._sync.stop()
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


def _store(config: PsConfig, lease: Lease) -> Store:
    applied = AppliedPushes[WriteReply](config.push_memory_bytes, config.push_memory_s)
    return Store(
        config.index,
        clock=time.time,
        applied=applied,
        lease=lease,
        max_blob_bytes=config.max_blob_bytes,
    )


def _as_assigned(config: PsConfig) -> PsConfig:
    index, server = assigned("ps", config.index, config.server, config.discovery)
    return replace(config, index=index, server=server)


def _build(config: PsConfig, exit_request: ExitRequest) -> Service:
    waited_for = only_waits_for(config.discovery)
    if waited_for:
        return Bystander(waited_for, exit_request)

    return PsServer(_as_assigned(config), exit_request)


def run(config: PsConfig) -> int:
    """Serve until told to stop; returns the exit status."""
    log_compilations()
    return lifecycle.run(
        f"ps-{config.index}",
        lambda exit_request: _build(config, exit_request),
        log_level=config.server.log_level,
        exit_with_stdin=config.server.exit_with_stdin,
    )
