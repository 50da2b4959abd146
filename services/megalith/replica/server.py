"""Composition root of a serving replica."""

import logging
import os
import socket
import threading

from megalith.control.controller import Controller
from megalith.protos import replication_pb2 as pb
from megalith.replica.config import ReplicaConfig
from megalith.replica.copies.cluster_copy import ClusterCopy
from megalith.replica.copies.followed_servers import FollowedServers, HeldShare
from megalith.replica.copies.loaded_checkpoint import CheckpointLoader
from megalith.replica.exported_server import ExportedServer
from megalith.replica.freshness import RecentFreshness
from megalith.replica.metrics import FreshnessMetrics, add_copy_metrics
from megalith.replica.predicting.prediction import Predictor
from megalith.replica.predicting.task_file import TaskFile
from megalith.replica.reporting import Reporting
from megalith.replica.serving.lane import ReplicaLane
from megalith.replica.serving.lookups import Lookups
from megalith.replica.serving.services import services_of
from megalith.replica.warm_up import warm_up
from megalith.runtime.lane.starting import start_both
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.process import lifecycle
from megalith.runtime.process.lifecycle import ExitRequest
from megalith.runtime.rpc.server import RpcServer
from megalith.wire.reports import ReplicaReport
from megalith.wire.routing import share_of_buckets

logger = logging.getLogger(__name__)

_LOOK_S = 0.1  # between two looks whether it is ready
_CONTROLLER_S = 5.0


class ReplicaServer:
    """One replica. SERVING once it has had everything that the parameter servers have."""

    def __init__(self, config: ReplicaConfig, exit_request: ExitRequest) -> None:
        index = config.index
        self._config = config
        self._alert_staleness_s = config.alert_staleness_s
        self._presence = config.membership.open_presence("replica", index, config.discovery)
        self._controller = Controller(self._presence.find_controller, None, _CONTROLLER_S)
        share_index, share_count = config.share()
        buckets = share_of_buckets(share_index, share_count)
        share = HeldShare(share_index, share_count, buckets)
        metrics = Metrics()
        histograms = FreshnessMetrics(metrics)
        self._recent = RecentFreshness()

        def on_version(version: pb.VersionEnd) -> None:
            histograms.applied(version)
            self._recent.applied(version)

        limit = config.server.max_message_bytes
        servers = FollowedServers(
            f"replica-{index}",
            share,
            on_version,
            limit,
            is_controller_away=lambda: self._copy.is_controller_away,
        )
        self._copy = ClusterCopy(
            self._controller,
            share,
            servers,
            CheckpointLoader(self._controller, buckets),
            admit=lambda: self._reporting.send(),
            start_rolled_back_to=config.checkpoint,
        )
        add_copy_metrics(metrics, self._copy)
        lookups = Lookups(self._copy)
        predictor = Predictor(self._copy, TaskFile(config.task_path))
        self._lane = ReplicaLane(config, lookups, predictor, metrics)
        services = services_of(index, self._copy, lookups, predictor, self._lane)
        self._rpc = RpcServer(config.server, metrics, services)
        membership = config.membership
        self._reporting = Reporting(
            self._controller, membership.job, self._report, membership.heartbeat_s
        )
        self._stopping = threading.Event()
        self._looking = threading.Thread(target=self._look, name="readiness", daemon=True)

    @property
    def address(self) -> str:
        return self._rpc.address

    def start(self) -> None:
        start_both(self._lane, self._rpc)

        self._looking.start()
        self._reporting.start()
        self._presence.announce(self.address)
        logger.info(
            "replica listening address=%s metrics=%s", self.address, self._rpc.metrics_address
        )

    def stop(self, grace_s: float) -> None:
        self._stopping.set()
        self._looking.join()
        self._reporting.stop()
        self._lane.stop(grace_s)
        self._rpc.stop(grace_s)
        self._copy.stop()
        self._controller.close()
        self._presence.stop()

    def _report(self) -> ReplicaReport:
        copy = self._copy
        share_index, share_count = self._config.share()
        median_s, slowest_s = self._recent.percentiles()
        event_median_s, event_slowest_s = self._recent.event_percentiles()
        return ReplicaReport(
            index=self._config.index,
            address=self.address,
            metrics_address=self._rpc.metrics_address,
            is_ready=copy.is_ready,
            rows=copy.model.rows,
            bytes=copy.model.nbytes,
            staleness_s=copy.freshness().staleness_s if copy.is_ready else 0.0,
            freshness_p50_s=median_s,
            freshness_p99_s=slowest_s,
            event_p50_s=event_median_s,
            event_p99_s=event_slowest_s,
            tables=self._recent.by_table(),
            share_index=share_index,
            share_count=share_count,
            complaint=self._complaint(),
            pid=os.getpid(),
            host=socket.gethostname(),
            started_from=copy.started_from,
            hold=copy.hold,
        )

    def _complaint(self) -> str:
        """What an operator should know; empty while all is well."""
        copy = self._copy
        if not copy.is_ready:
            return f"not ready: {copy.what_is_missing()}"

        staleness_s = copy.freshness().staleness_s
        if staleness_s <= self._alert_staleness_s:
            return ""

        if copy.hold:
            return f"it is {copy.hold}, {staleness_s:.0f} s old; megalith ctl replicas unpin"

        lost = []
        for following in copy.followings:
            if following.complaint:
                lost.append(f"ps-{following.copy.index}: {following.complaint}")

        why = "; ".join(lost)
        return f"it had everything {staleness_s:.1f} s ago. {why}".strip()

    def _look(self) -> None:
        """Follow, once kernels are compiled; say when it is ready, and when it is too stale."""
        warm_up()
        if self._stopping.is_set():
            return

        self._copy.start()
        while not self._copy.is_ready:
            if self._stopping.wait(_LOOK_S):
                return

        self._rpc.set_serving(True)
        logger.info("ready rows=%d bytes=%d", self._copy.model.rows, self._copy.model.nbytes)
        is_stale = False
        while not self._stopping.wait(_LOOK_S):
            staleness_s = self._copy.freshness().staleness_s
            was_stale = is_stale
            is_stale = staleness_s > self._alert_staleness_s
            if is_stale and not was_stale:
                logger.warning("stale: it had everything %.1f s ago", staleness_s)
            elif was_stale and not is_stale:
                logger.info("fresh again")


def run(config: ReplicaConfig) -> int:
    """Serve until told to stop; returns the exit status."""
    kind = ExportedServer if config.export else ReplicaServer
    return lifecycle.run(
        f"replica-{config.index}",
        lambda exit_request: kind(config, exit_request),
        log_level=config.server.log_level,
        exit_with_stdin=config.server.exit_with_stdin,
    )
