"""Composition root of the AppMaster mock."""

import logging
import threading
from collections.abc import Callable

from megalith.appmaster.config import AppMasterConfig
from megalith.appmaster.job import FinalStatus, Job
from megalith.appmaster.servicer import AppMasterServicer
from megalith.client import Controller, errors
from megalith.protos import appmaster_pb2_grpc
from megalith.runtime import lifecycle
from megalith.runtime.lifecycle import ExitRequest
from megalith.runtime.metrics import Metrics
from megalith.runtime.server import RpcServer

logger = logging.getLogger(__name__)

_WATCH_S = 1.0


class AppMasterServer:
    """The mock of one job's AppMaster. SERVING once it has found the controller; exits when the job is over."""

    def __init__(self, config: AppMasterConfig, exit_request: ExitRequest) -> None:
        self._config, self._exit_request = config, exit_request
        self._controller = Controller(
            config.controller or None, None if config.controller else config.model_dir, config.join_timeout_s
        )
        self._job = Job(config.app_id, self._controller, _start_thread)
        servicer = AppMasterServicer(self._job, self._controller)
        self._rpc = RpcServer(
            config.server,
            Metrics(),
            {
                "primus.AppMasterService": (
                    lambda server: appmaster_pb2_grpc.add_AppMasterServiceServicer_to_server(servicer, server)
                )
            },
        )
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._watch_job, name="job-watch", daemon=True)

    @property
    def address(self) -> str:
        return self._rpc.address

    def start(self) -> None:
        self._rpc.start()
        self._watch.start()
        logger.info("appmaster listening address=%s metrics=%s", self.address, self._rpc.metrics_address)

    def stop(self, grace_s: float) -> None:
        self._stopping.set()
        self._rpc.stop(grace_s)
        self._controller.close()

    def _watch_job(self) -> None:
        """Follow the controller until the job is over or the controller is gone."""
        status, reason = 0, ""
        while not self._stopping.is_set():
            try:
                seen = self._controller.status()
            except Exception as error:
                if not isinstance(error, errors.MegalithError):
                    logger.exception("watching the job failed")
                is_over = self._job.final_status is not FinalStatus.UNDEFINED
                status, reason = (0, "the job is over") if is_over else (1, f"no controller: {error}")
                break
            self._rpc.set_serving(True)
            if seen.outcome:
                self._job.ended(seen.outcome == "succeeded")
                reason = f"the job {seen.outcome}: {seen.reason}"
                break
            self._stopping.wait(_WATCH_S)
        self._stopping.wait(self._config.linger_s)
        self._exit_request.request(status, reason)


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
