"""Composition root of the controller."""

import fcntl
import logging
import threading
from typing import IO

from megalith.controller.config import ControllerConfig
from megalith.controller.coordinator import Coordinator
from megalith.controller.saves import Saver
from megalith.controller.servicer import About, ControllerServicer, CoordinationServicer
from megalith.protos import controller_pb2_grpc, coordination_pb2_grpc
from megalith.runtime import application, lifecycle, manifest
from megalith.runtime.files import prepare_model_dir, write_atomically
from megalith.runtime.lifecycle import ExitRequest
from megalith.runtime.metrics import Metrics
from megalith.runtime.server import RpcServer
from megalith.wire import controller_address
from megalith.wire.errors import ModelDirInUse

logger = logging.getLogger(__name__)

_LOCK_FILE = "controller.lock"
_LINGER_S = 2.0  # longer than the poll of whoever watches the job, so that they see its outcome
_JOIN_S = 1.0  # for own threads; one that is inside a final save is left behind
_DISMISS_S = 3.0  # for members to leave once they are told to


class ControllerServer:
    """The controller of one job."""

    def __init__(self, config: ControllerConfig, exit_request: ExitRequest) -> None:
        self._config, self._exit_request = config, exit_request
        self._model_dir = prepare_model_dir(config.model_dir)
        self._coordinator = Coordinator(
            config.num_ps, config.num_workers, silence_s=config.silence_s, lost_worker_s=config.lost_worker_s
        )
        self._saver = Saver(self._coordinator, self._model_dir, config.save_timeout_s)
        self._about = About(str(self._model_dir.absolute()), config.num_ps, config.num_workers)
        controller = ControllerServicer(self._coordinator, self._saver)
        coordination = CoordinationServicer(self._coordinator, self._saver, self._about)
        self._rpc = RpcServer(
            config.server,
            self._metrics(),
            {
                "Controller": lambda server: controller_pb2_grpc.add_ControllerServicer_to_server(controller, server),
                "megalith.v1.Coordination": lambda server: coordination_pb2_grpc.add_CoordinationServicer_to_server(
                    coordination, server
                ),
            },
            extra_threads=self._about.max_sessions,
        )
        self._lock: IO[str] | None = None
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch_silence, name="silence-watch", daemon=True),
            threading.Thread(target=self._finish_job, name="job-end", daemon=True),
        ]

    @property
    def address(self) -> str:
        return self._rpc.address

    def start(self) -> None:
        self._lock_model_dir()
        try:
            self._serve()
        except BaseException:
            self.stop(0)
            raise

    def _serve(self) -> None:
        checkpoint = manifest.latest(self._model_dir)
        if checkpoint is not None:
            self._coordinator.raise_global_step(manifest.read(checkpoint).step)
            logger.info("starting from checkpoint path=%s", checkpoint)
        self._rpc.start()
        self._about.address = self.address
        write_atomically(self._model_dir / controller_address.FILE_NAME, self.address.encode())
        for thread in self._threads:
            thread.start()
        self._rpc.set_serving(True)
        logger.info("controller serving address=%s metrics=%s", self.address, self._rpc.metrics_address)

    def stop(self, grace_s: float) -> None:
        self._stopping.set()
        self._coordinator.wake()
        self._rpc.set_serving(False)
        self._coordinator.end_sessions()
        self._rpc.stop(grace_s)
        if controller_address.read(self._model_dir) == self.address:
            (self._model_dir / controller_address.FILE_NAME).unlink(missing_ok=True)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)
        if self._lock is not None:
            self._lock.close()

    def _lock_model_dir(self) -> None:
        """Refuse a second controller. The kernel releases the lock when its holder dies, however it dies."""
        self._lock = open(self._model_dir / _LOCK_FILE, "w")  # noqa: SIM115  # held open for as long as this serves
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            address = controller_address.read(self._model_dir) or "an address not written yet"
            raise ModelDirInUse(
                f"--model-dir={self._model_dir}: a controller at {address} serves it; stop that one or choose another"
            ) from None

    def _watch_silence(self) -> None:
        while not self._stopping.wait(min(1.0, self._config.silence_s / 4)):
            self._coordinator.drop_silent()

    def _finish_job(self) -> None:
        """When the workers are done: the last save, the outcome, and everyone's leave."""
        if self._coordinator.wait_until_workers_finish(self._stopping.is_set):
            try:
                saved = self._saver.save()
                self._coordinator.end(True, f"all workers finished; saved {saved.path}")
            except Exception as error:
                logger.exception("the final save failed")
                self._coordinator.end(False, f"the final save failed: {error}")
        if not self._coordinator.wait_until_ended(self._stopping.is_set):
            return
        succeeded, reason = self._coordinator.outcome or (False, "stopped")
        self._coordinator.dismiss(reason, _DISMISS_S)
        application.report_outcome(succeeded, reason)
        if not self._config.stay_up:
            self._stopping.wait(_LINGER_S)
            self._exit_request.request(0 if succeeded else 1, reason)

    def _metrics(self) -> Metrics:
        metrics = Metrics()
        coordinator = self._coordinator
        metrics.gauge("megalith_global_step", "Steps taken by all workers.", lambda: coordinator.global_step)
        metrics.gauge(
            "megalith_barrier_placed", "1 while training is held.", lambda: coordinator.state().is_barrier_placed
        )
        metrics.gauge(
            "megalith_members", "Live sessions.", lambda: sum(place.is_connected for place in coordinator.places()[0])
        )
        return metrics


def run(config: ControllerConfig) -> int:
    """Serve until told to stop or the job has ended; returns the exit status."""
    return lifecycle.run(
        "controller",
        lambda exit_request: ControllerServer(config, exit_request),
        log_level=config.server.log_level,
        exit_with_stdin=config.server.exit_with_stdin,
    )
