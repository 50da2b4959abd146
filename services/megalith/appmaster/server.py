"""Composition root of the AppMaster: the supervisor of one job, with the face of a platform's.

`megalith up --restart` relies on it in production. The AppMaster decides which processes that died
are started again, and when the job is over; `up` reports to it twice a second and does what it
says. To programs that know the platform it answers primus.AppMasterService as the platform's own
AppMaster does, so a job on one machine is driven as one on the platform is.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc

from megalith.appmaster.config import AppMasterConfig
from megalith.appmaster.heartbeats import Heartbeats
from megalith.appmaster.job import Job, kept_ending
from megalith.appmaster.leaving import wait_before_leaving
from megalith.appmaster.metrics import appmaster_metrics
from megalith.appmaster.savepoints import Savepoints, kept_savepoints
from megalith.appmaster.servicer import AppMasterServicer
from megalith.appmaster.state_file import Check, StateFile
from megalith.appmaster.supervision import Supervision, kept_max_restarts
from megalith.appmaster.supervision_servicer import SupervisionServicer
from megalith.appmaster.watch import JobWatch
from megalith.control import Controller, address_file
from megalith.errors import ApplicationEnded
from megalith.protos import appmaster_pb2_grpc, supervision_pb2_grpc
from megalith.runtime.files import write_atomically
from megalith.runtime.joining.presence import Presence
from megalith.runtime.process import lifecycle
from megalith.runtime.process.lifecycle import ExitRequest
from megalith.runtime.rpc.server import RpcServer

logger = logging.getLogger(__name__)

_STATE_FILE = "appmaster_state.json"
# One call to the controller; below the 10 s that the platform's clients give a call to us
_CONTROLLER_S = 5.0


class AppMasterServer:
    """The AppMaster of one job. SERVING once it has found the controller.

    Exits when the job is over.
    """

    def __init__(self, config: AppMasterConfig, exit_request: ExitRequest) -> None:
        self._config = config
        self._exit_request = exit_request
        checks: dict[str, Check] = {
            "supervision": kept_max_restarts,
            "ending": kept_ending,
            "savepoints": kept_savepoints,
        }

        self._state = StateFile(_state_path(config), config.app_id, checks)
        self._refuse_an_ended_application()

        discovery = config.discovery.open(config.job, config.model_dir)
        self._presence = Presence("appmaster", 0, discovery, config.controller, config.model_dir)
        call_s = min(_CONTROLLER_S, config.join_timeout_s)
        self._controller = Controller(self._presence.find_controller, None, call_s)

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

        savepoints = Savepoints(
            lambda directory: self._controller.save(directory).path,
            _start_thread,
            lambda: self._job.ending is not None,
            self._state.section("savepoints"),
            lambda kept: self._state.put("savepoints", kept),
        )

        self._watch = JobWatch(
            self._job,
            self._controller.status,
            config.join_timeout_s,
            is_serving=lambda is_serving: self._rpc.set_serving(is_serving),
            finished=self._finished,
        )

        heartbeats = Heartbeats()
        appmaster = AppMasterServicer(self._job, savepoints, heartbeats, self._controller)
        supervision = SupervisionServicer(
            self._job,
            savepoints,
            self._supervision,
            self._watch,
            metrics_address=lambda: self._rpc.metrics_address,
        )
        services: dict[str, Callable[[grpc.Server], None]] = {
            "primus.AppMasterService": partial(
                appmaster_pb2_grpc.add_AppMasterServiceServicer_to_server, appmaster
            ),
            "megalith.v1.Supervision": partial(
                supervision_pb2_grpc.add_SupervisionServicer_to_server, supervision
            ),
        }

        metrics = appmaster_metrics(heartbeats, self._supervision, self._job)
        self._rpc = RpcServer(config.server, metrics, services)

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
            path = Path(self._config.model_dir) / address_file.APPMASTER.name
            write_atomically(path, self.address.encode())

        self._watch.start()
        logger.info(
            "appmaster listening address=%s metrics=%s", self.address, self._rpc.metrics_address
        )

    def stop(self, grace_s: float) -> None:
        self._watch.stop()
        self._rpc.stop(grace_s)
        self._withdraw_address()
        self._controller.close()
        self._presence.stop()
        self._state.close()

    def _withdraw_address(self) -> None:
        """Remove the file with this AppMaster's address; one of another AppMaster stays."""
        model_dir = self._config.model_dir
        if model_dir and address_file.APPMASTER.read(model_dir) == self.address:
            path = Path(model_dir) / address_file.APPMASTER.name
            path.unlink(missing_ok=True)

    def _refuse_an_ended_application(self) -> None:
        ending = self._state.section("ending")
        if ending:
            self._state.close()
            raise ApplicationEnded(
                f"application {self._config.app_id} has ended ({ending['reason']}), "
                f"says {_state_path(self._config)}; give the next job another --app-id"
            )

    def _finished(self, status: int, reason: str) -> None:
        self._exit_request.is_work_done = True
        wait_before_leaving(self._supervision, self._watch.linger, self._config.linger_s)
        self._exit_request.request(status, reason)


def _state_path(config: AppMasterConfig) -> Path | None:
    if config.state_file:
        return Path(config.state_file).absolute()
    if config.model_dir:
        return Path(config.model_dir).absolute() / _STATE_FILE

    return None


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
