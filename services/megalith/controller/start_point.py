"""Which checkpoint parameter servers start from, and whether all of it has come back."""

import threading
from collections.abc import Sequence
from pathlib import Path

from megalith.runtime import manifest
from megalith.runtime.manifest import Restored
from megalith.wire.errors import CheckpointDamaged, CheckpointNotFound


class StartPoint:
    """The newest checkpoint of the model directory, and the rows of those that servers have started from.

    `_lock` guards what is known of them.
    """

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._lock = threading.Lock()
        self._newest: Path | None = None
        self._rows_by_path: dict[str, int] = {}

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint that this controller has started from or written; None before there is one."""
        with self._lock:
            return self._newest

    def find(self) -> Path | None:
        """The checkpoint to start from: the one that the directory's list names, as an operator may have changed it.

        None = start empty. A checkpoint that is gone or cannot be read is an error that names the file and the ways
        out, also if nothing at all is left of one that this job has had.
        """
        path = manifest.latest(self._model_dir)
        if path is None:
            if self.newest is not None:
                raise CheckpointNotFound(
                    f"{self.newest} is gone, and so is {self._model_dir / manifest.STATE_FILE}: a ps that came back "
                    "empty would train on with a part of the model; put them back, or end the job"
                )
            return None
        try:
            content = manifest.read(path)
        except CheckpointDamaged as error:
            raise CheckpointDamaged(f"{error}; {manifest.ways_out(self._model_dir)}") from error
        self.saved(path, content.rows)
        return path

    def saved(self, path: Path, rows: int) -> None:
        """There is a newer checkpoint, with that many rows."""
        with self._lock:
            self._newest = path
            self._rows_by_path[str(path.absolute())] = rows

    def fault(self, restored: Sequence[Restored | None], *, is_first: bool) -> str:
        """Why servers that are ready must not go on together; empty if they may.

        What they restored from one checkpoint adds up to its rows. Servers that start together (`is_first`) start from
        the same checkpoint. Later a replacement has a newer one than the others; each server then has checked its own
        part. None is a server that an earlier controller has let go on.
        """
        known = [part for part in restored if part is not None]
        paths = sorted({part.path for part in known})
        if len(paths) > 1:
            return (
                f"parameter servers started from different checkpoints: {paths}; start the job again"
                * is_first
            )
        if len(known) < len(restored) or not paths:
            return ""
        with self._lock:
            expected = self._rows_by_path.get(paths[0])
        rows = sum(part.rows for part in known)
        expired = sum(part.expired for part in known)
        left_out = sum(part.left_out for part in known)
        if expected is None or rows + expired + left_out == expected:
            return ""
        return (
            f"{paths[0]} has {expected} rows, but {len(known)} parameter servers restored {rows}, found {expired} "
            f"expired and left {left_out} out: {expected - rows - expired - left_out} rows are missing"
        )
