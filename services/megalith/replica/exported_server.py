"""Composition root of a replica that serves an exported model, without a job."""

import logging
from pathlib import Path

from megalith.replica.config import ReplicaConfig
from megalith.replica.copies.exported_copy import ExportedCopy
from megalith.replica.predicting import task_file
from megalith.replica.predicting.prediction import Predictor
from megalith.replica.predicting.task_file import TaskFile
from megalith.replica.serving.lane import ReplicaLane
from megalith.replica.serving.lookups import Lookups
from megalith.replica.serving.services import services_of
from megalith.runtime.lane.starting import start_both
from megalith.runtime.monitoring.metrics import Metrics
from megalith.runtime.process.lifecycle import ExitRequest
from megalith.runtime.rpc.server import RpcServer

logger = logging.getLogger(__name__)


class ExportedServer:
    """SERVING once the model is loaded. A model that cannot be loaded is an error at the start."""

    def __init__(self, config: ReplicaConfig, exit_request: ExitRequest) -> None:
        self._copy = ExportedCopy(Path(config.export), config.export_every_s)
        self._given_task = Path(config.task_file) if config.task_file else None

        metrics = Metrics()
        metrics.gauge("megalith_rows", "Embedding rows held.", lambda: self._copy.model.rows)
        metrics.gauge(
            "megalith_bytes", "Memory of rows and index.", lambda: self._copy.model.nbytes
        )
        metrics.gauge(
            "megalith_replica_staleness_seconds",
            "Since the checkpoint of the exported model was saved.",
            lambda: self._copy.freshness().staleness_s,
        )

        lookups = Lookups(self._copy)
        predictor = Predictor(self._copy, TaskFile(self._task_path))
        self._lane = ReplicaLane(config, lookups, predictor, metrics)
        services = services_of(config.index, self._copy, lookups, predictor, self._lane)
        self._rpc = RpcServer(config.server, metrics, services)

    def _task_path(self) -> Path:
        """That of the version, unless another one was given."""
        return self._given_task or self._copy.directory / task_file.NAME

    @property
    def address(self) -> str:
        return self._rpc.address

    def start(self) -> None:
        start_both(self._lane, self._rpc)

        self._copy.start()
        self._rpc.set_serving(True)
        logger.info(
            "replica listening address=%s metrics=%s", self.address, self._rpc.metrics_address
        )

    def stop(self, grace_s: float) -> None:
        self._lane.stop(grace_s)
        self._rpc.stop(grace_s)
        self._copy.stop()
