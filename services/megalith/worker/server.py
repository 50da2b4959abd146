"""Composition root of a worker."""

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from megalith.client import Cluster, connect
from megalith.collective.choose import OFF, open_engine
from megalith.errors import InvalidSetting, MegalithError
from megalith.protos import coordination_pb2
from megalith.runtime.joining.lease import Lease
from megalith.runtime.joining.presence import Presence, assigned, only_waits_for
from megalith.runtime.process import lifecycle
from megalith.runtime.process.bystander import Bystander
from megalith.runtime.process.lifecycle import ExitRequest, Service
from megalith.runtime.rpc.server import RpcServer
from megalith.runtime.task_loading import load_task
from megalith.worker.config import OverlapSettings, WorkerConfig
from megalith.worker.duties import debugging_info
from megalith.worker.duties.chief import Chief
from megalith.worker.duties.job_end import JobEnd
from megalith.worker.hooks.chosen import hooks_of
from megalith.worker.life import WorkerLife
from megalith.worker.metrics import worker_metrics
from megalith.worker.session.member import WorkerMember
from megalith.worker.session.piece_source import ControllerPieces
from megalith.worker.session.progress import Progress
from megalith.worker.session.view import ClusterView, KnownState
from megalith.worker.steps.failover import Failover
from megalith.worker.steps.in_step import InStep
from megalith.worker.steps.step_counter import StepCounter, StepPublisher
from megalith.worker.steps.training import Training
from megalith.worker.summaries import StepSummaries
from megalith.worker.task import DYNAMIC

logger = logging.getLogger(__name__)

# Seconds that a thread may keep the GIL from others; Python's own 5 ms are half a step. With them,
# steps of the demo that overlap (8,192 examples, 2 ps, 2 cores) took 14.2 ms, with 0.5 ms 9.4, with
# 0.1 ms 8.6, with 0.02 ms 8.7.
_SWITCH_S = 0.0001
_ASK_S = 2.0  # for the controller to say where the ps are


class WorkerServer:
    """One worker. SERVING from its welcome on; exits by itself when its share is done."""

    def __init__(
        self, config: WorkerConfig, exit_request: ExitRequest, in_step: InStep | None = None
    ) -> None:
        self._config = config
        self._in_step = in_step
        self._view = ClusterView()
        self._progress = Progress()

        # Before anything that has to be closed: a task that cannot be loaded ends the start, and so
        # does a directory of summaries that cannot be written.
        self._task = load_task(config.task.task, config.task.keywords())
        self._tables = tuple(self._task.tables)
        self._hooks = hooks_of(self._task, config.hooks, config.index)
        self._summaries: StepSummaries | None = None
        if config.summaries.tensorboard:
            self._summaries = StepSummaries(config.summaries, config.index, self._progress)

        self._presence = config.membership.open_presence("worker", config.index, config.discovery)
        self._cluster = _connect(config, self._presence)
        self._progress.counts_unknown_by(lambda: self._cluster.writes_unknown)
        self._progress.counts_hook_errors_by(lambda: self._hooks.errors)

        self._make_rpc()
        self._make_member(exit_request)
        self._make_training()
        self._life = WorkerLife(
            self._training,
            self._chief,
            self._view,
            self._progress,
            self._member.report_now,
            JobEnd(self._presence.find_controller, self._view),
            exit_request,
        )

    def _make_rpc(self) -> None:
        config = self._config
        hooks = self._hooks
        model_name = config.membership.model_name or config.task.task

        metrics = worker_metrics(self._progress, config.index, model_name)
        metrics.counter(
            "megalith_hook_errors_total",
            "Calls of hooks that raised, while training went on.",
            lambda: hooks.errors.hook_errors,
        )
        if self._summaries is not None:
            self._summaries.count_in(metrics)

        self._rpc = RpcServer(config.server, metrics, {})

    def _make_member(self, exit_request: ExitRequest) -> None:
        config = self._config
        lease = Lease()
        self._cluster.follow_session(lambda: lease.is_held)
        self._member = WorkerMember(
            config.index,
            config.membership,
            self._presence,
            self._view,
            self._progress,
            lease,
            addresses=lambda: (self._rpc.address, self._rpc.metrics_address),
            begin=self._begin,
            exit_request=exit_request,
        )

    def _make_training(self) -> None:
        """The steps of this worker, and the chief if it is worker 0."""
        config = self._config
        counter = StepCounter(config.index)
        publisher = StepPublisher(counter, self._cluster, self._progress)
        failover = Failover(
            config.retries.retry_wait_s,
            config.retries.max_retries,
            epoch=lambda: self._view.state.epoch,
            pause=self._view.pause,
            on_failover=self._progress.failed_over,
        )

        overlap = config.overlap
        if self._in_step is not None:
            overlap = _without_overlap(overlap)

        self._training = Training(
            self._task,
            self._cluster,
            self._view,
            self._progress,
            config.index,
            self._member.report_now,
            failover=failover,
            retry_wait_s=config.retries.retry_wait_s,
            overlap=overlap,
            counter=counter,
            publisher=publisher,
            max_steps=config.task.max_steps,
            batch_size=config.task.batch_size,
            on_nan=config.task.on_nan,
            summaries=self._summaries,
            hooks=self._hooks,
            pieces=self._pieces(),
            in_step=self._in_step,
        )

        self._chief: Chief | None = None
        if config.index == 0:
            self._chief = self._make_chief(counter, publisher, failover)

    def _pieces(self) -> ControllerPieces | None:
        """What the controller hands out, if it does."""
        if self._config.task.sharding != DYNAMIC:
            return None

        pieces = ControllerPieces(
            self._cluster.controller,
            self._config.index,
            lambda: self._member.incarnation,
        )
        self._member.on_return = pieces.rejoined
        self._progress.takes_pieces_from(pieces.progress)
        return pieces

    def _make_chief(
        self, counter: StepCounter, publisher: StepPublisher, failover: Failover
    ) -> Chief:
        config = self._config
        chief = Chief(
            self._task,
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
            on_initialized=self._write_debugging_info,
            allow_new_layout=config.task.allow_new_layout,
            summaries=self._summaries,
        )
        if self._summaries is not None:
            self._summaries.write_sizes_of(self._cluster)

        return chief

    def _write_debugging_info(self, state: KnownState) -> None:
        try:
            routing = self._cluster.controller.routing_now(_ASK_S, "")
        except MegalithError as error:
            logger.warning("%s stays as it is: %s", debugging_info.FILE, error)
            return

        debugging_info.write(
            self._config.membership.model_dir,
            self.address,
            routing.addresses,
            len(state.positions),
            self._tables,
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
        if self._summaries is not None:
            self._summaries.close()
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


def _without_overlap(overlap: OverlapSettings) -> OverlapSettings:
    """Workers in step wait for all pushes of a step before they pull for the next one."""
    return replace(overlap, staleness=0)


def _as_assigned(config: WorkerConfig) -> WorkerConfig:
    index, server = assigned("worker", config.index, config.server, config.discovery)
    return replace(config, index=index, server=server)


def _as_launched(config: WorkerConfig, environ: Mapping[str, str]) -> WorkerConfig:
    """Under torchrun the index is the rank, if workers are in step. Under mpirun it is anyway."""
    rank = environ.get("RANK", "")
    if config.in_step.dense_sync == OFF or config.index or not rank.isdecimal():
        return config

    return replace(config, index=int(rank))


def _in_step(config: WorkerConfig) -> InStep | None:
    """What keeps a worker in step with the others; None = it steps by itself."""
    settings = config.in_step
    if settings.dense_sync == OFF:
        return None
    if config.task.sharding == DYNAMIC:
        raise InvalidSetting(
            "--sharding=dynamic: workers with --dense-sync read shares of their own"
        )
    if config.hooks.slow_start_steps:
        raise InvalidSetting("--slow-start-steps: workers with --dense-sync begin together")

    in_step = InStep(lambda: open_engine(settings.dense_sync, os.environ, settings.sync_timeout_s))
    if in_step.index != config.index:
        raise InvalidSetting(
            f"--index={config.index}: this is rank {in_step.index} of {in_step.count}; leave it "
            "out, and start all workers by one launcher: one of them alone cannot be replaced"
        )

    return in_step


def _build(config: WorkerConfig, exit_request: ExitRequest) -> Service:
    waited_for = only_waits_for(config.discovery)
    if waited_for:
        return Bystander(waited_for, exit_request)

    found = _as_assigned(config)
    return WorkerServer(found, exit_request, _in_step(found))


def run(config: WorkerConfig) -> int:
    """Train until the share is done or told to stop; returns the exit status."""
    sys.setswitchinterval(_SWITCH_S)
    launched = _as_launched(config, os.environ)
    status = lifecycle.run(
        f"worker-{launched.index}",
        lambda exit_request: _build(launched, exit_request),
        log_level=config.server.log_level,
        exit_with_stdin=config.server.exit_with_stdin,
    )
    if config.in_step.dense_sync != OFF:
        # It did not start. In the interpreter's end MPI would wait for the other ranks, which wait
        # for this one; so mpirun hears of it, and ends them.
        logging.shutdown()
        os._exit(status)

    return status
