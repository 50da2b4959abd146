"""Composition root of a worker."""

import logging
import sys
from dataclasses import replace

from megalith.client import Cluster, connect
from megalith.protos import coordination_pb2
from megalith.runtime import lifecycle
from megalith.runtime.lease import Lease
from megalith.runtime.lifecycle import ExitRequest
from megalith.runtime.presence import Presence, assigned
from megalith.runtime.server import RpcServer
from megalith.worker.chief import Chief
from megalith.worker.config import WorkerConfig
from megalith.worker.failover import Failover
from megalith.worker.job_end import JobEnd
from megalith.worker.life import WorkerLife
from megalith.worker.member import WorkerMember
from megalith.worker.metrics import worker_metrics
from megalith.worker.progress import Progress
from megalith.worker.step_counter import StepCounter, StepPublisher
from megalith.worker.task import load_task
from megalith.worker.training import Training
from megalith.worker.view import ClusterView

logger = logging.getLogger(__name__)

# Seconds that a thread may keep the GIL from others; Python's own 5 ms are half a step. With them,
# steps of the demo that overlap (8,192 examples, 2 ps, 2 cores) took 14.2 ms, with 0.5 ms 9.4, with
# 0.1 ms 8.6, with 0.02 ms 8.7.
_SWITCH_S = 0.0001


class WorkerServer:
    """One worker. SERVING from its welcome on; exits by itself when its share is done."""

    def __init__(self, config: WorkerConfig, exit_request: ExitRequest) -> None:
        index = config.index
        self._view = ClusterView()
        self._progress = Progress()
        # Before anything that has to be closed: a task that cannot be loaded ends the start.
        task = load_task(config.task.task, config.task.keywords())

        self._presence = config.membership.open_presence("worker", index, config.discovery)
        self._cluster = _connect(config, self._presence)
        lease = Lease()
        self._cluster.follow_session(lambda: lease.is_held)
        self._progress.counts_unknown_by(lambda: self._cluster.writes_unknown)

        model_name = config.membership.model_name or config.task.task
        metrics = worker_metrics(self._progress, index, model_name)
        self._rpc = RpcServer(config.server, metrics, {})
        self._member = WorkerMember(
            index,
            config.membership,
            self._presence,
            self._view,
            self._progress,
            lease,
            addresses=lambda: (self._rpc.address, self._rpc.metrics_address),
            begin=self._begin,
            exit_request=exit_request,
        )

        counter = StepCounter(index)
        publisher = StepPublisher(counter, self._cluster, self._progress)
        failover = Failover(
            config.retries.retry_wait_s,
            config.retries.max_retries,
            epoch=lambda: self._view.state.epoch,
            pause=self._view.pause,
            on_failover=self._progress.failed_over,
        )

        self._training = Training(
            task,
            self._cluster,
            self._view,
            self._progress,
            index,
            self._member.report_now,
            failover=failover,
            retry_wait_s=config.retries.retry_wait_s,
            overlap=config.overlap,
            counter=counter,
            publisher=publisher,
            max_steps=config.task.max_steps,
            batch_size=config.task.batch_size,
        )

        self._chief: Chief | None = None

        if index == 0:
            self._chief = Chief(
                task,
                self._cluster,
                self._view,
                self._progress,
                self._member.report_now,
                failover=failover,
                gate=self._training.gate,
                counter=counter,
                publisher=publisher,
                last_variables=lambda: self._training.last_variables,
                timeout_s=config.retries.chief_timeout_s,
                allow_new_layout=config.task.allow_new_layout,
            )

        self._life = WorkerLife(
            self._training,
            self._chief,
            self._view,
            self._progress,
            self._member.report_now,
            JobEnd(self._presence.find_controller, self._view),
            exit_request,
        )

    @property
    def address(self) -> str:
        return self._rpc.address

    def start(self) -> None:
        self._rpc.start()
        self._member.start()
        logger.info(
            "worker listening address=%s metrics=%s", self.address, self._rpc.metrics_address
        )

    def stop(self, grace_s: float) -> None:
        self._view.stop()
        self._rpc.stop(grace_s)
        self._cluster.close(wait=False)  # a call may be waiting for a lost ps
        self._member.report_now()  # with the pushes that were given up
        self._member.stop()
        self._presence.stop()

    def _begin(self, welcome: coordination_pb2.Welcome) -> None:
        self._life.begin(welcome.num_workers)
        self._rpc.set_serving(True)


def _connect(config: WorkerConfig, presence: Presence) -> Cluster:
    return connect(
        presence.find_controller,
        timeout_s=config.step_timeout_s,
        connect_timeout_s=0,  # its membership waits for the controller, --join-timeout-s
        max_message_bytes=config.server.max_message_bytes,
        row_dtype=config.wire.row_dtype,
        gradient_dtype=config.wire.gradient_dtype,
    )


def _as_assigned(config: WorkerConfig) -> WorkerConfig:
    index, server = assigned("worker", config.index, config.server, config.discovery)
    return replace(config, index=index, server=server)


def run(config: WorkerConfig) -> int:
    """Train until the share is done or told to stop; returns the exit status."""
    sys.setswitchinterval(_SWITCH_S)
    return lifecycle.run(
        f"worker-{config.index}",
        lambda exit_request: WorkerServer(_as_assigned(config), exit_request),
        log_level=config.server.log_level,
        exit_with_stdin=config.server.exit_with_stdin,
    )
