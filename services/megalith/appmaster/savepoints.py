"""Savepoints of the job: checkpoints taken in the background, followed by their id."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from megalith.errors import NotFound

logger = logging.getLogger(__name__)


class SavepointState(Enum):
    """A savepoint only moves forward through these."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


_UNFINISHED = (SavepointState.PENDING, SavepointState.RUNNING)


@dataclass(frozen=True, slots=True)
class Savepoint:
    """One savepoint. A refused one has no id and its message says why."""

    id: str
    state: SavepointState
    path: str = ""
    message: str = ""


class Savepoints:
    """One at a time. `_lock` guards them.

    `save` writes a checkpoint to a directory and returns its path. It is called outside the lock,
    on a thread that `start` provides. What an earlier AppMaster left unfinished has failed: whether
    its checkpoint was completed nobody knows.
    """

    def __init__(
        self,
        save: Callable[[str], str],
        start: Callable[[Callable[[], None]], None],
        is_over: Callable[[], bool],
        kept: Mapping[str, Any],
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self._save = save
        self._start = start
        self._is_over = is_over
        self._keep = keep
        self._lock = threading.Lock()
        self._by_id = kept_savepoints(kept)

    def create(self, directory: str) -> Savepoint:
        """Begin a checkpoint in the background.

        Refused while one is under way and after the end of the job.
        """
        with self._lock:
            if refusal := self._refusal():
                logger.warning("savepoint refused: %s", refusal)
                return Savepoint("", SavepointState.FAILED, message=refusal)

            number = len(self._by_id) + 1
            savepoint = Savepoint(str(number), SavepointState.PENDING)
            self._put(savepoint)

        self._start(lambda: self._run(savepoint, directory))
        return savepoint

    def get(self, savepoint_id: str) -> Savepoint:
        with self._lock:
            if savepoint_id in self._by_id:
                return self._by_id[savepoint_id]
            known = sorted(self._by_id)

        raise NotFound(f"no savepoint {savepoint_id!r}; known are {known}")

    def all(self) -> list[Savepoint]:
        """Oldest first."""
        with self._lock:
            return list(self._by_id.values())

    def finished_path(self, savepoint_id: str) -> str:
        """Where a savepoint that finished well is; empty for any other."""
        with self._lock:
            savepoint = self._by_id.get(savepoint_id)

        return savepoint.path if savepoint else ""

    def _refusal(self) -> str:
        if self._is_over():
            return "the application has ended"

        for each in self._by_id.values():
            if each.state in _UNFINISHED:
                return f"savepoint {each.id} is {each.state.value}; wait until it is done"

        return ""

    def _run(self, savepoint: Savepoint, directory: str) -> None:
        self._move(replace(savepoint, state=SavepointState.RUNNING))

        try:
            path = self._save(directory)
        except Exception as error:
            logger.exception("savepoint %s failed", savepoint.id)
            done = replace(savepoint, state=SavepointState.FAILED, message=str(error))
        else:
            logger.info("savepoint %s complete path=%s", savepoint.id, path)
            done = replace(savepoint, state=SavepointState.SUCCEEDED, path=path)

        self._move(done)

    def _move(self, savepoint: Savepoint) -> None:
        with self._lock:
            self._put(savepoint)

    def _put(self, savepoint: Savepoint) -> None:
        self._by_id[savepoint.id] = savepoint
        kept = [_plain(each) for each in self._by_id.values()]
        self._keep({"all": kept})


def _plain(savepoint: Savepoint) -> dict[str, str]:
    """The savepoint as `_restored` reads it."""
    values = asdict(savepoint)
    values["state"] = savepoint.state.value
    return values


def kept_savepoints(kept: Mapping[str, Any]) -> dict[str, Savepoint]:
    """What an earlier AppMaster wrote down, by id.

    ValueError, KeyError or TypeError for anything else.
    """
    by_id = {}
    for each in kept.get("all", ()):
        savepoint = _restored(each)
        by_id[savepoint.id] = savepoint

    return by_id


def _restored(kept: Mapping[str, str]) -> Savepoint:
    state = SavepointState(kept["state"])
    savepoint = Savepoint(kept["id"], state, kept["path"], kept["message"])

    texts = (savepoint.id, savepoint.path, savepoint.message)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"not a savepoint: {kept}")

    if state not in _UNFINISHED:
        return savepoint

    message = "the AppMaster was restarted while it was written"
    return replace(savepoint, state=SavepointState.FAILED, message=message)
