"""Composition root of the AppMaster mock."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from megalith.appmaster.config import AppMasterConfig
from megalith.appmaster.heartbeats import Heartbeats
from megalith.appmaster.job import Job, kept_ending
from megalith.appmaster.savepoints import Savepoints, kept_savepoints
from megalith.appmaster.servicer import AppMasterServicer
from megalith.appmaster.state_file import StateFile
from megalith.appmaster.supervision import Supervision, kept_max_restarts
from megalith.appmaster.supervision_servicer import SupervisionServicer
from megalith.appmaster.watch import JobWatch
from megalith.client import Controller
from megalith.protos import appmaster_pb2_grpc, supervision_pb2_grpc
from megalith.runtime import lifecycle
from megalith.runtime.files import write_atomically
from megalith.runtime.lifecycle import ExitRequest
from megalith.runtime.metrics import Metrics
from megalith.runtime.presence import Presence
from megalith.runtime.server import RpcServer
from megalith.wire import appmaster_address
from megalith.wire.errors import ApplicationEnded

logger = logging.getLogger(__name__)

_STATE_FILE = "appmaster_state.json"
_CONTROLLER_S = (
    5.0  # one call to the controller; below the 10 s that the platform's clients give a call to us
)


class AppMasterServer:
    """The mock of one job's AppMaster. SERVING once it has found the controller; exits when the job is over."""

    def __init__(self, config: AppMasterConfig, exit_request: ExitRequest) -> None:
        self._config, self._exit_request = config, exit_request
        self._state = StateFile(
            _state_path(config),
            config.app_id,
            {
                "supervision": kept_max_restarts,
                "ending": kept_ending,
                "savepoints": kept_savepoints,
            },
        )
        self._refuse_an_ended_application()
        discovery = config.discovery.open(config.job, config.model_dir)
        self._presence = Presence("appmaster", 0, discovery, config.controller, config.model_dir)
        self._controller = Controller(
            self._presence.find_controller, None, min(_CONTROLLER_S, config.join_timeout_s)
        )
        self._supervision = Supervision(
            config.max_restarts,
            self._state.section("supervision"),
            lambda kept: self._state.put("supervision", kept),
        )
        self._job = Job(
            config.app_id,
            self._controller,
            lambda: self._supervision.is_supervised,
            self._state.section("ending"),
            lambda kept: self._state.put("ending", kept),
        )
        self._savepoints = Savepoints(
            lambda directory: self._controller.save(directory).path,
            _start_thread,
            lambda: self._job.ending is not None,
            self._state.section("savepoints"),
            lambda kept: self._state.put("savepoints", kept),
        )
        self._heartbeats = Heartbeats()
        self._watch = JobWatch(
            self._job,
            self._controller.status,
            config.join_timeout_s,
            is_serving=lambda is_serving: self._rpc.set_serving(is_serving),
            finished=self._finished,
        )
        appmaster = AppMasterServicer(
            self._job, self._savepoints, self._heartbeats, self._controller
        )
        supervision = SupervisionServicer(
            self._job, self._savepoints, self._supervision, self._watch
        )
        self._rpc = RpcServer(
            config.server,
            self._metrics(),
            {
                "primus.AppMasterService": (
                    lambda server: appmaster_pb2_grpc.add_AppMasterServiceServicer_to_server(
                        appmaster, server
                    )
                ),
                "megalith.v1.Supervision": (
                    lambda server: supervision_pb2_grpc.add_SupervisionServicer_to_server(
                        supervision, server
                    )
                ),
            },
        )

    @property
    def address(self) -> str:
        return self._rpc.address

    def start(self) -> None:
        try:
            self._rpc.start()
        except BaseException:
            self._state.close()
            raise
        if self._config.model_dir:
            write_atomically(
                Path(self._config.model_dir) / appmaster_address.FILE_NAME, self.address.encode()
            )
        self._watch.start()
        logger.info(
            "appmaster listening address=%s metrics=%s", self.address, self._rpc.metrics_address
        )

    def stop(self, grace_s: float) -> None:
        self._watch.stop()
        self._rpc.stop(grace_s)
        if (
            self._config.model_dir
            and appmaster_address.read(self._config.model_dir) == self.address
        ):
            (Path(self._config.model_dir) / appmaster_address.FILE_NAME).unlink(missing_ok=True)
        self._controller.close()
        self._presence.stop()
        self._state.close()

    def _refuse_an_ended_application(self) -> None:
        ending = self._state.section("ending")
        if ending:
            self._state.close()
            raise ApplicationEnded(
                f"application {self._config.app_id} has ended ({ending['reason']}), says {_state_path(self._config)}; "
                "give the next job another --app-id"
            )

    def _finished(self, status: int, reason: str) -> None:
        self._exit_request.is_work_done = True
        self._watch.linger(self._config.linger_s)
        self._exit_request.request(status, reason)

    def _metrics(self) -> Metrics:
        metrics = Metrics()
        heartbeats, supervision, job = self._heartbeats, self._supervision, self._job
        metrics.counter(
            "megalith_app_heartbeats_total",
            "Heart-beats of the job since start.",
            lambda: heartbeats.count,
        )
        metrics.gauge(
            "megalith_app_last_heartbeat_seconds",
            "Unix time of the last one; 0 = none.",
            lambda: heartbeats.last_s,
        )
        metrics.gauge(
            "megalith_app_ended", "1 once the job is over.", lambda: job.ending is not None
        )
        metrics.counter(
            "megalith_app_restarts_total", "Processes started again, in all.", supervision.restarts
        )
        metrics.gauge(
            "megalith_app_processes_running",
            "Processes of the job that run, as their supervisor says.",
            lambda: sum(process.is_running for process in supervision.processes()),
        )
        return metrics


def _state_path(config: AppMasterConfig) -> Path | None:
    if config.state_file:
        return Path(config.state_file).absolute()
    return Path(config.model_dir).absolute() / _STATE_FILE if config.model_dir else None


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="savepoint", daemon=True).start()


def run(config: AppMasterConfig) -> int:
    """Serve until the job is over or told to stop; returns the exit status."""
    return lifecycle.run(
        "appmaster",
        lambda exit_request: AppMasterServer(config, exit_request),
        log_level=config.server.log_level,
        exit_with_stdin=config.server.exit_with_stdin,
    )
