"""Composition root of a worker."""

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from megalith.client import Controller, connect
from megalith.protos import coordination_pb2
from megalith.runtime import application, lifecycle
from megalith.runtime.lifecycle import ExitRequest
from megalith.runtime.metrics import Metrics
from megalith.runtime.presence import assigned
from megalith.runtime.server import RpcServer
from megalith.wire.errors import MegalithError
from megalith.worker.config import WorkerConfig
from megalith.worker.member import WorkerMember
from megalith.worker.progress import Progress
from megalith.worker.step_metrics import StepMetrics
from megalith.worker.task import load_task, raised_at
from megalith.worker.training import Training
from megalith.worker.view import ClusterView, Phase, State

logger = logging.getLogger(__name__)

# Seconds that a thread may keep the GIL from others; Python's own 5 ms are half a step. With them, steps of the demo
# that overlap (8,192 examples, 2 ps, 2 cores) took 14.2 ms, with 0.5 ms 9.4, with 0.1 ms 8.6, with 0.02 ms 8.7.
_SWITCH_S = 0.0001

_END_JOB_S = 20.0  # for the controller to hear of the end; the save that follows takes its own time


class WorkerServer:
    """One worker. SERVING from its welcome on; exits by itself when its share is done."""

    def __init__(self, config: WorkerConfig, exit_request: ExitRequest) -> None:
        self._config, self._exit_request = config, exit_request
        self._progress, self._view = Progress(), ClusterView()
        task = load_task(
            config.task.task,
            {
                "batch_size": config.task.batch_size,
                "num_examples": config.task.num_examples,
                "seed": config.task.seed,
            },
        )
        self._presence = config.membership.open_presence("worker", config.index, config.discovery)
        self._cluster = connect(
            self._presence.find_controller,
            timeout_s=config.step_timeout_s,
            connect_timeout_s=0,  # its membership waits for the controller, --join-timeout-s
            max_message_bytes=config.server.max_message_bytes,
            row_dtype=config.wire.row_dtype,
            gradient_dtype=config.wire.gradient_dtype,
        )
        self._progress.counts_unknown_by(lambda: self._cluster.writes_unknown)
        self._rpc = RpcServer(config.server, self._metrics(), {})
        self._member = WorkerMember(
            config.index,
            config.membership,
            self._presence,
            self._view,
            self._progress,
            addresses=lambda: (self._rpc.address, self._rpc.metrics_address),
            begin=self._begin,
            exit_request=exit_request,
        )
        self._training = Training(
            task,
            self._cluster,
            self._view,
            self._progress,
            config.index,
            announce=self._member.report_now,
            retries=config.retries,
            overlap=config.overlap,
            max_steps=config.task.max_steps,
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
        self._member.stop()
        self._cluster.close(wait=False)  # a call may be waiting for a lost ps
        self._presence.stop()

    def _begin(self, welcome: coordination_pb2.Welcome) -> None:
        # Daemons: a step that waits for a lost ps must not hold up the exit.
        if self._config.index == 0:
            threading.Thread(
                target=self._edge,
                args=(self._keep_initialized, welcome),
                name="initialize",
                daemon=True,
            ).start()
        threading.Thread(
            target=self._edge, args=(self._train, welcome), name="train", daemon=True
        ).start()
        self._rpc.set_serving(True)

    def _keep_initialized(self, welcome: coordination_pb2.Welcome) -> None:
        """Chief: whenever the cluster has a new epoch, create what is missing there.

        On a thread of its own, because a step of the training thread may be waiting for just that.
        """
        while self._view.wait_for(self._must_initialize):
            self._training.initialize(self._view.state)

    def _must_initialize(self, state: State) -> bool:
        return (
            state.phase is Phase.INITIALIZING
            and state.epoch > self._progress.snapshot().initialized_epoch
        )

    def _train(self, welcome: coordination_pb2.Welcome) -> None:
        self._training.run(welcome.num_workers)
        if not self._view.is_stopping:
            self._training.finish(welcome.num_workers)
            # In session until the job is over, so that a restarted controller hears that this share is done.
            if self._view.wait_for(lambda state: state.phase is Phase.FINISHED):
                self._exit_request.request(0, "the share is done")

    def _edge(
        self, work: Callable[[coordination_pb2.Welcome], None], welcome: coordination_pb2.Welcome
    ) -> None:
        """The outer edge of a thread: a failure ends the process, with its reason."""
        try:
            work(welcome)
        except Exception as error:
            if self._view.is_stopping:  # what it worked with is being closed
                logger.info("given up while stopping: %s", error)
            elif isinstance(error, MegalithError):
                self._fail(f"{type(error).__name__}: {error}")
            else:
                logger.exception("training failed")
                self._fail(f"training failed: {error}{raised_at(error)}")

    def _fail(self, reason: str) -> None:
        """Without its chief a job cannot end well, so on a platform the chief takes the whole job down.

        The controller saves what was trained before that. Elsewhere whoever started this worker decides.
        """
        if self._config.index == 0 and application.has_appmaster() and not self._end_job(reason):
            application.report_outcome(False, reason)
        self._exit_request.request(1, reason)

    def _end_job(self, reason: str) -> bool:
        """Have the controller save the model and end the job, and wait for that; False if it does not answer."""
        job = Controller(self._presence.find_controller, None, _END_JOB_S)
        try:
            job.end_job(False, reason)
            self._view.wait_for(lambda state: state.phase is Phase.FINISHED)
            return True
        except MegalithError as error:
            logger.error("nobody saves the model, the controller does not answer: %s", error)
            return False
        finally:
            job.close()

    def _metrics(self) -> Metrics:
        metrics = Metrics()
        progress = self._progress
        metrics.counter(
            "megalith_examples_total", "Examples trained.", lambda: progress.snapshot().examples
        )
        metrics.gauge(
            "megalith_examples_per_second",
            "Recent rate.",
            lambda: progress.snapshot().examples_per_s,
        )
        metrics.gauge("megalith_loss", "Mean over recent steps.", lambda: progress.snapshot().loss)
        metrics.counter(
            "megalith_pushes_unknown_total",
            "Parts of pushes, each to one ps, of which nobody will know whether they were applied.",
            lambda: self._cluster.writes_unknown,
        )
        progress.watched_by(
            StepMetrics(
                metrics,
                self._config.index,
                self._model_name(),
                lambda: progress.snapshot().is_finished,
            )
        )
        return metrics

    def _model_name(self) -> str:
        return self._config.membership.model_name or self._config.task.task


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
