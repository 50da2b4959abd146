"""The task of a job as a file: its name, and what its factory is called with.

`megalith train` writes task.json into the model directory, and an export takes it along.
"""

import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.errors import MegalithError, UnknownTask
from megalith.replica.predicting.served_task import ServedTask
from megalith.runtime.files import write_atomically
from megalith.runtime.task_loading import load_task

logger = logging.getLogger(__name__)

NAME = "task.json"


def write(directory: Path, task: str, keywords: dict[str, Any]) -> None:
    """`keywords` are those for a process that does not train."""
    text = json.dumps({"task": task, "keywords": keywords}, indent=1)
    write_atomically(directory / NAME, f"{text}\n".encode())


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What changes when a file is replaced."""

    path: Path
    inode: int
    changed_ns: int


class TaskFile:
    """The task of a file, which is loaded at the first request, and again when the file changes.

    A file that goes away changes nothing: the task that was loaded from it stays. `where` says
    which file it is now; None = none was given. `_lock` guards the task that is loaded.
    """

    def __init__(self, where: Callable[[], Path | None]) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._loaded: tuple[_Stamp, ServedTask] | None = None

    def task(self) -> ServedTask:
        """UnknownTask if there is none, or none that can be served."""
        path = self._where()
        if path is None:
            raise UnknownTask(
                "this replica does not know which task was trained: start it with --model-dir, or "
                f"with --task-file and the {NAME} of the model directory"
            )

        with self._lock:
            loaded = self._loaded
            try:
                stamp = _stamp_of(path)
            except OSError as error:
                if loaded is not None and loaded[0].path == path:
                    return loaded[1]

                raise UnknownTask(
                    f"this replica does not know which task was trained: {path} cannot be read "
                    f"({error.strerror}); `megalith train` writes it"
                ) from None

            if loaded is None or loaded[0] != stamp:
                loaded = stamp, _load(path)
                self._loaded = loaded

            return loaded[1]


def _stamp_of(path: Path) -> _Stamp:
    found = os.stat(path)
    return _Stamp(path, found.st_ino, found.st_mtime_ns)


def _load(path: Path) -> ServedTask:
    try:
        content = json.loads(path.read_bytes())
        name = content["task"]
        keywords = content["keywords"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnknownTask(f"{path} does not name a task: {error!r}") from error

    try:
        task = load_task(name, keywords)
    except MegalithError as error:
        raise UnknownTask(f"{path}: the task cannot be made here: {error}") from error

    if not isinstance(task, ServedTask):
        raise UnknownTask(
            f"{path}: the task {name} cannot be served: it is no FeatureTask, and has no method "
            "served_logits"
        )

    logger.info("serving the task %s of %s", name, path)
    return task
