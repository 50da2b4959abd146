"""The job as the resource manager sees it: how it ends, its savepoints, how far it is."""

import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from megalith.wire.errors import BarrierAlreadyPlaced, NotFound

logger = logging.getLogger(__name__)


class FinalStatus(Enum):
    UNDEFINED = "UNDEFINED"  # the job runs
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class SavepointState(Enum):
    """A savepoint only moves forward through these."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Savepoint:
    id: str
    state: SavepointState
    path: str = ""
    message: str = ""


class Saved(Protocol):
    """A finished checkpoint."""

    @property
    def path(self) -> str: ...


class JobController(Protocol):
    """What the job asks of the cluster's controller; the SDK's Controller is one."""

    def stop(self) -> None: ...
    def resume(self) -> None: ...
    def save(self, directory: str = "") -> Saved: ...
    def end_job(self, succeeded: bool, reason: str) -> None: ...


class Job:
    """One application. `_lock` guards the final status and the savepoints; the controller is called outside it."""

    def __init__(self, app_id: str, controller: JobController, start: Callable[[Callable[[], None]], None]) -> None:
        self.app_id = app_id
        self._controller, self._start = controller, start
        self._lock = threading.Lock()
        self._final_status = FinalStatus.UNDEFINED
        self._savepoints: dict[str, Savepoint] = {}
        self._ids = itertools.count(1)

    @property
    def final_status(self) -> FinalStatus:
        with self._lock:
            return self._final_status

    def end(self, succeeded: bool, reason: str) -> None:
        """End the job. The first end decides; a repeated one changes nothing."""
        if self.final_status is not FinalStatus.UNDEFINED:
            return
        logger.info("job ends succeeded=%s reason=%s", succeeded, reason)
        self._controller.end_job(succeeded, reason)  # idempotent; if it fails, the caller may try again
        self.ended(succeeded)

    def ended(self, succeeded: bool) -> None:
        """The controller knows that the job is over. The first word counts."""
        with self._lock:
            if self._final_status is FinalStatus.UNDEFINED:
                self._final_status = FinalStatus.SUCCEEDED if succeeded else FinalStatus.FAILED

    def suspend(self) -> None:
        """Hold training; holding what is held changes nothing."""
        try:
            self._controller.stop()
        except BarrierAlreadyPlaced:
            logger.info("suspend: training is held already")

    def resume(self) -> None:
        self._controller.resume()

    def create_savepoint(self, directory: str) -> Savepoint:
        """Begin a checkpoint in the background; follow it by its id."""
        with self._lock:
            savepoint = Savepoint(str(next(self._ids)), SavepointState.PENDING)
            self._savepoints[savepoint.id] = savepoint
        self._start(lambda: self._save(savepoint, directory))
        return savepoint

    def savepoint(self, savepoint_id: str) -> Savepoint:
        with self._lock:
            if savepoint_id not in self._savepoints:
                raise NotFound(f"no savepoint {savepoint_id!r}; known are {sorted(self._savepoints)}")
            return self._savepoints[savepoint_id]

    def snapshot_dir(self, savepoint_id: str) -> str:
        """Where a savepoint that finished well is; empty for any other."""
        with self._lock:
            savepoint = self._savepoints.get(savepoint_id)
        return savepoint.path if savepoint else ""

    def _save(self, savepoint: Savepoint, directory: str) -> None:
        self._put(replace(savepoint, state=SavepointState.RUNNING))
        try:
            path = self._controller.save(directory).path
        except Exception as error:
            logger.exception("savepoint %s failed", savepoint.id)
            self._put(replace(savepoint, state=SavepointState.FAILED, message=str(error)))
        else:
            self._put(replace(savepoint, state=SavepointState.SUCCEEDED, path=path))

    def _put(self, savepoint: Savepoint) -> None:
        with self._lock:
            self._savepoints[savepoint.id] = savepoint
