"""What the AppMaster remembers over its own restarts: one JSON file, replaced at each change."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from megalith.errors import AppMasterRunning
from megalith.runtime import files
from megalith.runtime.files import write_atomically

logger = logging.getLogger(__name__)

Check = Callable[[Mapping[str, Any]], object]  # raises ValueError, KeyError or TypeError


class StateFile:
    """Sections of plain values, each owned by one part of the AppMaster.

    Belongs to one application: what the file says of another one is forgotten at the first change,
    and a file that cannot be read, or has a section that its owner's check refuses, is kept beside
    it with the suffix .damaged. Without a path nothing outlives the process. `_lock` guards the
    sections and the writing, so the file never goes back to an older state.
    """

    def __init__(
        self, path: Path | None, app_id: str, checks: Mapping[str, Check] | None = None
    ) -> None:
        self._path = path
        self._app_id = app_id
        self._checks = checks or {}

        self._lock = threading.Lock()
        self._held: IO[bytes] | None = None
        self._sections: dict[str, dict[str, Any]] = {}

        if path is not None:
            self._hold(path)
            self._sections = self._read(path)

    def section(self, name: str) -> dict[str, Any]:
        """What was last put there; empty if nothing was."""
        with self._lock:
            return dict(self._sections.get(name, {}))

    def put(self, name: str, values: dict[str, Any]) -> None:
        """Remember; once this returns, a kill loses nothing of it."""
        with self._lock:
            self._sections[name] = values

            if self._path is not None:
                content = {"app_id": self._app_id, **self._sections}
                text = json.dumps(content, indent=1)
                write_atomically(self._path, text.encode())

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def _hold(self, path: Path) -> None:
        """Refuse a second AppMaster.

        The kernel releases the lock when its holder dies, however it dies.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        lock_path = path.with_name(f"{path.name}.lock")
        self._held = files.open_plain(lock_path, "r+b")  # held open while this lives

        try:
            if not files.lock(self._held):
                logger.warning(
                    "%s has no file locks: a second AppMaster is not noticed", path.parent
                )
        except BlockingIOError:
            self.close()
            raise AppMasterRunning(
                f"{path}: a live AppMaster keeps its state there; "
                "stop that one, or give another --state-file"
            ) from None

    def _read(self, path: Path) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(path.read_text())
            app_id = content.pop("app_id")
            sections = {name: dict(values) for name, values in content.items()}
            if app_id == self._app_id:
                for name, check in self._checks.items():
                    check(sections.get(name, {}))
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            damaged = path.with_name(f"{path.name}.damaged")
            path.rename(damaged)
            logger.error(
                "cannot read the state, starting without it error=%r kept=%s", error, damaged
            )
            return {}

        if app_id != self._app_id:
            logger.info("the state is another application's, starting anew app_id=%s", app_id)
            return {}

        return sections
