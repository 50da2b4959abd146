"""An exported model in memory, which is replaced when there is a newer version."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from megalith.checkpoint.exported import about, loading, versions
from megalith.checkpoint.exported.about import ExportedModel
from megalith.errors import CheckpointDamaged, InvalidRequest, MegalithError, TooStale
from megalith.replica.copies.following import Following
from megalith.replica.copies.model import ServedModel
from megalith.replica.copies.ps_copy import PsCopy
from megalith.replica.copies.view import CopyFreshness, ModelView

logger = logging.getLogger(__name__)

_NO_JOB = (
    "this replica serves an exported model and follows no job; to stay with one version, give its "
    "folder to --export"
)


class ExportedCopy:
    """Serves the newest version in a folder, or one version. Any thread may read.

    A newer version is loaded beside the one that is served, and takes its place at once; a request
    that has begun is answered from the older one. A version that cannot be loaded is said in the
    log, and the older one stays. One thread looks for versions.
    """

    def __init__(
        self, directory: Path, every_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Loads the model: CheckpointNotFound or CheckpointDamaged if that fails."""
        self._directory = directory
        self._every_s = every_s
        self._clock = clock
        self._served = _load(versions.newest(directory))
        self._refused: _Contents | None = None  # a version that could not be loaded
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exported-models", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def model(self) -> ServedModel:
        return self._served.model

    @property
    def directory(self) -> Path:
        """Of the version that is served."""
        return self._served.directory

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def followings(self) -> list[Following]:
        """None: there are no parameter servers."""
        return []

    @property
    def started_from(self) -> str:
        return f"exported model {self._served.exported.version}"

    @property
    def hold(self) -> str:
        """Nothing: it serves the newest version."""
        return ""

    def pin(self) -> None:
        raise InvalidRequest(_NO_JOB)

    def unpin(self) -> None:
        raise InvalidRequest(_NO_JOB)

    def roll_back(self, checkpoint: str) -> None:
        raise InvalidRequest(_NO_JOB)

    def staleness_of(self, copy: PsCopy) -> float:
        raise AssertionError("there are no parameter servers")

    def view(self, max_staleness_s: float = 0.0) -> ModelView:
        """What an answer of now is made of. The model is as old as its checkpoint.

        TooStale beyond `max_staleness_s`, if given.
        """
        served = self._served
        exported = served.exported
        staleness_s = max(0.0, self._clock() - exported.saved_at_s)
        name = f"{exported.version} ({exported.checkpoint})"

        if max_staleness_s and staleness_s > max_staleness_s:
            raise TooStale(
                f"this replica serves the exported model {name}, saved {staleness_s:.0f} s ago, "
                f"and {max_staleness_s:.3f} s are allowed; export a newer one"
            )

        freshness = CopyFreshness(staleness_s, (), "", served.newest_data_s, name)
        return ModelView(served.model, freshness)

    def freshness(self, max_staleness_s: float = 0.0) -> CopyFreshness:
        """How old the model is: since its checkpoint was saved. Raises as `view` does."""
        return self.view(max_staleness_s).freshness

    def look(self) -> None:
        """Load the newest version, if it is another one, whatever its folder is called.

        One that could not be loaded is tried again when its files change: it may have been copied
        here file by file.
        """
        newest = versions.newest(self._directory)
        found = _Contents.of(newest)
        if found == self._refused:
            return

        try:
            if not self._served.is_of(newest):
                self._served = _load(newest)
        except MegalithError as error:
            self._refused = found
            logger.error("version %s is not served, the older one stays: %s", newest.name, error)

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self.look()
            except MegalithError as error:
                logger.warning("no newer version can be looked for: %s", error)
            except Exception:
                logger.exception("looking for a newer version failed")


@dataclass(frozen=True, slots=True)
class _Served:
    """A whole version, where it was loaded from, and the newest data time of its rows."""

    directory: Path
    exported: ExportedModel
    model: ServedModel
    newest_data_s: int

    def is_of(self, directory: Path) -> bool:
        """Whether it is what that folder has now; a link may lead elsewhere by now."""
        if directory.resolve() != self.directory:
            return False

        return about.read(directory) == self.exported


@dataclass(frozen=True, slots=True)
class _Contents:
    """What changes in a folder while files are copied into it: name, size and time of each."""

    directory: Path
    files: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, directory: Path) -> Self:
        files = []
        for path in sorted(directory.iterdir()):
            found = path.stat()
            files.append((path.name, found.st_size, found.st_mtime_ns))

        return cls(directory, tuple(files))


def _load(folder: Path) -> _Served:
    began_s = time.monotonic()
    directory = folder.resolve()
    exported = about.read(directory)
    logger.info(
        "loading version=%d; the first replica on a machine compiles its kernels", exported.version
    )
    model = ServedModel(1)
    newest_data_s = 0
    for number in range(len(exported.tables)):
        newest_data_s = max(newest_data_s, _load_table(directory, exported, number, model))

    model.set_variables(loading.read_variables(directory, exported))
    logger.info(
        "loaded version=%d checkpoint=%s step=%d rows=%d bytes=%d seconds=%.1f",
        exported.version,
        exported.checkpoint,
        exported.step,
        model.rows,
        model.nbytes,
        time.monotonic() - began_s,
    )
    return _Served(directory, exported, model, newest_data_s)


def _load_table(directory: Path, exported: ExportedModel, number: int, model: ServedModel) -> int:
    """The newest data time of the rows of a table, which is in the model after this."""
    newest_s = 0
    file = exported.tables[number]
    with loading.opened(directory, exported, number) as opened:
        table = model.begin_table(opened.config)

        for ids, rows, times in opened.batches():
            table.upsert_compressed(ids, rows, times)

            newest = times.max(initial=newest_s)
            newest_s = int(newest)

    if len(table) != file.rows:
        raise CheckpointDamaged(
            f"{directory / file.name} has {len(table)} rows, {file.rows} were written"
        )

    some_ids = np.zeros(1, np.int64)
    table.lookup(some_ids)  # compiles what the first request would wait for
    model.end_snapshot(table, 0)
    return newest_s
